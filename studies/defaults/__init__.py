"""A search for defaults over tables of many kinds."""
