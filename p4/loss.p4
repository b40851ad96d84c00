// The drop simulator: what comes in at a port, or leaves by it, is lost with the probability that its entry says, in
// units of 2^-32. It acts before a packet has changed anything, so that a loss is one of the link.

control LossIn(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    @name(".lose_in") action lose(bit<32> probability) {
        bit<32> drawn;
        random(drawn, 0, 0xffffffff);
        if (drawn < probability) {
            meta.is_lost = 1;
        }
    }
    @name(".loss_in") table loss_in {
        key = { sm.ingress_port : exact; }
        actions = { lose; NoAction; }
        default_action = NoAction();
        size = 512;
    }
    apply {
        loss_in.apply();
    }
}

control LossOut(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    @name(".lose_out") action lose(bit<32> probability) {
        bit<32> drawn;
        random(drawn, 0, 0xffffffff);
        if (drawn < probability) {
            mark_to_drop(sm);
        }
    }
    @name(".loss_out") table loss_out {
        key = { sm.egress_port : exact; }
        actions = { lose; NoAction; }
        default_action = NoAction();
        size = 512;
    }
    apply {
        loss_out.apply();
    }
}
