"""The papers' tables on this machine: what is measured, run cell by cell, beside what was printed."""
