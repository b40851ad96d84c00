// Results and partial sums of addressed packets (docs/protocol.md, sections 9 and 11), in egress: whoever gets no data
// gets the first 14 bytes. Another switch of a tree counts as the root if the root is among the ranks behind it, seen from
// here; so data cross a link only if a rank on its other side needs them. sparse.p4 has the rest, since the reach, root
// and op of a packet are held like a sparse packet's words.

control Cut(inout headers_t hdr, inout meta_t meta, in standard_metadata_t sm) {
    action cut() {
        hdr.first.setInvalid();
#ifdef REST_WORDS
        hdr.rest.setInvalid();
#endif
        hdr.udp.length = LENGTH_CUT;
    }
    action without_data() { // for a switch, which goes by the size
        hdr.padding.setInvalid();
        hdr.switchml.size = SPARSE;
        hdr.udp.length = LENGTH_CUT;
    }
    action answer() {
        meta.to_switch = meta.job.tree[1:1]; // FROM_BELOW
        meta.behind = meta.job.me;
    }
    action new_length() {
        hdr.ipv4.length = hdr.udp.length + 20;
    }
    apply {
        bit<16> receiver = sm.egress_rid;
        if (sm.egress_rid == 0) { // the answer to a retransmission
            receiver = meta.job.worker;
            answer();
        }
        bool is_root = meta.to_switch == 1 ? (meta.behind & meta.root_bit) != 0 : receiver == meta.root;
        if (is_root != (meta.reach == REACH_ROOT)) {
            cut();
        }
        if (meta.to_switch == 1 && !hdr.first.isValid()) {
            without_data();
            bool is_up = sm.egress_rid != 0 && meta.job.tree & HAS_ABOVE != 0;
            if (meta.size == SIZE_1024 && (is_up || is_root)) {
                put_padding(hdr);
            }
        }
        new_length();
    }
}
