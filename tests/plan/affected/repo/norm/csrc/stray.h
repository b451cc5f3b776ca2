// nobody lists this
