"""Where samples come from: files of records, arrays, a data set of the user's own. `base` says what a source is."""
