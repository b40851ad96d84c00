// The IPv4 header's checksum: looked at in every packet but those of protocol 1 that have 0 there, as p4app-switchML's
// client sends them; written anew in those that the switch made.

#define IPV4_HEADER { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, \
    hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

control VerifyIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5
            && !(hdr.ipv4.checksum == 0 && hdr.switchml.isValid() && hdr.switchml.kind == 1),
            IPV4_HEADER, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ComputeIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(meta.is_rewritten == 1, IPV4_HEADER, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
