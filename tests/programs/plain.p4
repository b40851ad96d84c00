// SPDX-License-Identifier: Apache-2.0
// The controls that most programs here leave at nothing. Include it after headers_t and meta_t.
control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control NoEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {}
}

control NoCompute(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control EmitAll(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}
