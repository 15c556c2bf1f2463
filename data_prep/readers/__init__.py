"""One file or folder per data set; `names` lists them."""
