"""Everything that people write: scenario, study, site file, and each kind of thing that they name."""
