// Results of addressed packets (docs/protocol.md, section 11), in egress: whoever gets no data gets the first 14 bytes.
// sparse.p4 has the rest, since the reach, root and op of a packet are held like a sparse packet's words.

control Cut(inout headers_t hdr, in meta_t meta, in standard_metadata_t sm) {
    action cut() {
        hdr.first.setInvalid();
#ifdef REST_WORDS
        hdr.rest.setInvalid();
#endif
        hdr.udp.length = LENGTH_CUT;
        hdr.ipv4.length = LENGTH_CUT + 20;
    }
    apply {
        bit<16> receiver = sm.egress_rid == 0 ? meta.job.worker : sm.egress_rid; // 0: the answer to a retransmission
        if ((receiver == meta.root) != (meta.reach == REACH_ROOT)) {
            cut();
        }
    }
}
