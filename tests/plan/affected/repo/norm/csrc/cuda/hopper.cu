// for Hopper
