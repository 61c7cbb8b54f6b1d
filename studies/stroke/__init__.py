"""Results on the International Stroke Trial: study files, and tables of their cells."""
