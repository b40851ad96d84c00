"""`switchml validate peers`: one real rank among emulated ones, beside all ranks real."""
