"""From a site file to a site: loaders, partitions, shifts, splits, preprocessing with public constants."""
