// for all
