"""`switchml validate peers`: one real rank among emulated ones, compared with all ranks real."""
