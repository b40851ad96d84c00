"""Numbers of the hash functions that the VM has."""

CRC, CSUM16, XOR16, XOR32, IDENTITY, XXH64, FNV, TOEPLITZ = range(8)
