"""What `switchml bench network` measures: hosts on slow links, in network namespaces."""
