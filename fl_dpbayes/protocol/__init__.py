"""What crosses between server and site, as plain validated records: no Flower, no torch."""
