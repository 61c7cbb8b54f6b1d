"""The results on the International Stroke Trial: cells, measures, tables and their page."""
