"""Sources of samples: files of records, arrays, and a user's own data set. `base` defines the interface."""
