// SPDX-License-Identifier: Apache-2.0
// Aggregation of 64 32-bit lanes, a register each. Written by generate_agg.py, which says what the program does.
#include "ethernet.p4"

header agg_t {
    bit<16> slot;
    bit<16> sender;
    bit<16> everybody;
    bit<16> group;
}

header data_t {
    bit<32> v0;
    bit<32> v1;
    bit<32> v2;
    bit<32> v3;
    bit<32> v4;
    bit<32> v5;
    bit<32> v6;
    bit<32> v7;
    bit<32> v8;
    bit<32> v9;
    bit<32> v10;
    bit<32> v11;
    bit<32> v12;
    bit<32> v13;
    bit<32> v14;
    bit<32> v15;
    bit<32> v16;
    bit<32> v17;
    bit<32> v18;
    bit<32> v19;
    bit<32> v20;
    bit<32> v21;
    bit<32> v22;
    bit<32> v23;
    bit<32> v24;
    bit<32> v25;
    bit<32> v26;
    bit<32> v27;
    bit<32> v28;
    bit<32> v29;
    bit<32> v30;
    bit<32> v31;
    bit<32> v32;
    bit<32> v33;
    bit<32> v34;
    bit<32> v35;
    bit<32> v36;
    bit<32> v37;
    bit<32> v38;
    bit<32> v39;
    bit<32> v40;
    bit<32> v41;
    bit<32> v42;
    bit<32> v43;
    bit<32> v44;
    bit<32> v45;
    bit<32> v46;
    bit<32> v47;
    bit<32> v48;
    bit<32> v49;
    bit<32> v50;
    bit<32> v51;
    bit<32> v52;
    bit<32> v53;
    bit<32> v54;
    bit<32> v55;
    bit<32> v56;
    bit<32> v57;
    bit<32> v58;
    bit<32> v59;
    bit<32> v60;
    bit<32> v61;
    bit<32> v62;
    bit<32> v63;
}

struct headers_t {
    ethernet_t eth;
    agg_t      agg;
    data_t     data;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {
            0x88b5: agg;
            default: accept;
        }
    }
    state agg {
        packet.extract(hdr.agg);
        packet.extract(hdr.data);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<16>>(256) senders;
    register<bit<32>>(256) sum_v0;
    register<bit<32>>(256) sum_v1;
    register<bit<32>>(256) sum_v2;
    register<bit<32>>(256) sum_v3;
    register<bit<32>>(256) sum_v4;
    register<bit<32>>(256) sum_v5;
    register<bit<32>>(256) sum_v6;
    register<bit<32>>(256) sum_v7;
    register<bit<32>>(256) sum_v8;
    register<bit<32>>(256) sum_v9;
    register<bit<32>>(256) sum_v10;
    register<bit<32>>(256) sum_v11;
    register<bit<32>>(256) sum_v12;
    register<bit<32>>(256) sum_v13;
    register<bit<32>>(256) sum_v14;
    register<bit<32>>(256) sum_v15;
    register<bit<32>>(256) sum_v16;
    register<bit<32>>(256) sum_v17;
    register<bit<32>>(256) sum_v18;
    register<bit<32>>(256) sum_v19;
    register<bit<32>>(256) sum_v20;
    register<bit<32>>(256) sum_v21;
    register<bit<32>>(256) sum_v22;
    register<bit<32>>(256) sum_v23;
    register<bit<32>>(256) sum_v24;
    register<bit<32>>(256) sum_v25;
    register<bit<32>>(256) sum_v26;
    register<bit<32>>(256) sum_v27;
    register<bit<32>>(256) sum_v28;
    register<bit<32>>(256) sum_v29;
    register<bit<32>>(256) sum_v30;
    register<bit<32>>(256) sum_v31;
    register<bit<32>>(256) sum_v32;
    register<bit<32>>(256) sum_v33;
    register<bit<32>>(256) sum_v34;
    register<bit<32>>(256) sum_v35;
    register<bit<32>>(256) sum_v36;
    register<bit<32>>(256) sum_v37;
    register<bit<32>>(256) sum_v38;
    register<bit<32>>(256) sum_v39;
    register<bit<32>>(256) sum_v40;
    register<bit<32>>(256) sum_v41;
    register<bit<32>>(256) sum_v42;
    register<bit<32>>(256) sum_v43;
    register<bit<32>>(256) sum_v44;
    register<bit<32>>(256) sum_v45;
    register<bit<32>>(256) sum_v46;
    register<bit<32>>(256) sum_v47;
    register<bit<32>>(256) sum_v48;
    register<bit<32>>(256) sum_v49;
    register<bit<32>>(256) sum_v50;
    register<bit<32>>(256) sum_v51;
    register<bit<32>>(256) sum_v52;
    register<bit<32>>(256) sum_v53;
    register<bit<32>>(256) sum_v54;
    register<bit<32>>(256) sum_v55;
    register<bit<32>>(256) sum_v56;
    register<bit<32>>(256) sum_v57;
    register<bit<32>>(256) sum_v58;
    register<bit<32>>(256) sum_v59;
    register<bit<32>>(256) sum_v60;
    register<bit<32>>(256) sum_v61;
    register<bit<32>>(256) sum_v62;
    register<bit<32>>(256) sum_v63;

    action store() {
        bit<32> slot = (bit<32>)hdr.agg.slot;
        sum_v0.write(slot, hdr.data.v0);
        sum_v1.write(slot, hdr.data.v1);
        sum_v2.write(slot, hdr.data.v2);
        sum_v3.write(slot, hdr.data.v3);
        sum_v4.write(slot, hdr.data.v4);
        sum_v5.write(slot, hdr.data.v5);
        sum_v6.write(slot, hdr.data.v6);
        sum_v7.write(slot, hdr.data.v7);
        sum_v8.write(slot, hdr.data.v8);
        sum_v9.write(slot, hdr.data.v9);
        sum_v10.write(slot, hdr.data.v10);
        sum_v11.write(slot, hdr.data.v11);
        sum_v12.write(slot, hdr.data.v12);
        sum_v13.write(slot, hdr.data.v13);
        sum_v14.write(slot, hdr.data.v14);
        sum_v15.write(slot, hdr.data.v15);
        sum_v16.write(slot, hdr.data.v16);
        sum_v17.write(slot, hdr.data.v17);
        sum_v18.write(slot, hdr.data.v18);
        sum_v19.write(slot, hdr.data.v19);
        sum_v20.write(slot, hdr.data.v20);
        sum_v21.write(slot, hdr.data.v21);
        sum_v22.write(slot, hdr.data.v22);
        sum_v23.write(slot, hdr.data.v23);
        sum_v24.write(slot, hdr.data.v24);
        sum_v25.write(slot, hdr.data.v25);
        sum_v26.write(slot, hdr.data.v26);
        sum_v27.write(slot, hdr.data.v27);
        sum_v28.write(slot, hdr.data.v28);
        sum_v29.write(slot, hdr.data.v29);
        sum_v30.write(slot, hdr.data.v30);
        sum_v31.write(slot, hdr.data.v31);
        sum_v32.write(slot, hdr.data.v32);
        sum_v33.write(slot, hdr.data.v33);
        sum_v34.write(slot, hdr.data.v34);
        sum_v35.write(slot, hdr.data.v35);
        sum_v36.write(slot, hdr.data.v36);
        sum_v37.write(slot, hdr.data.v37);
        sum_v38.write(slot, hdr.data.v38);
        sum_v39.write(slot, hdr.data.v39);
        sum_v40.write(slot, hdr.data.v40);
        sum_v41.write(slot, hdr.data.v41);
        sum_v42.write(slot, hdr.data.v42);
        sum_v43.write(slot, hdr.data.v43);
        sum_v44.write(slot, hdr.data.v44);
        sum_v45.write(slot, hdr.data.v45);
        sum_v46.write(slot, hdr.data.v46);
        sum_v47.write(slot, hdr.data.v47);
        sum_v48.write(slot, hdr.data.v48);
        sum_v49.write(slot, hdr.data.v49);
        sum_v50.write(slot, hdr.data.v50);
        sum_v51.write(slot, hdr.data.v51);
        sum_v52.write(slot, hdr.data.v52);
        sum_v53.write(slot, hdr.data.v53);
        sum_v54.write(slot, hdr.data.v54);
        sum_v55.write(slot, hdr.data.v55);
        sum_v56.write(slot, hdr.data.v56);
        sum_v57.write(slot, hdr.data.v57);
        sum_v58.write(slot, hdr.data.v58);
        sum_v59.write(slot, hdr.data.v59);
        sum_v60.write(slot, hdr.data.v60);
        sum_v61.write(slot, hdr.data.v61);
        sum_v62.write(slot, hdr.data.v62);
        sum_v63.write(slot, hdr.data.v63);
    }
    action add() {
        bit<32> slot = (bit<32>)hdr.agg.slot;
        bit<32> old_v0;
        sum_v0.read(old_v0, slot);
        hdr.data.v0 = hdr.data.v0 + old_v0;
        sum_v0.write(slot, hdr.data.v0);
        bit<32> old_v1;
        sum_v1.read(old_v1, slot);
        hdr.data.v1 = hdr.data.v1 + old_v1;
        sum_v1.write(slot, hdr.data.v1);
        bit<32> old_v2;
        sum_v2.read(old_v2, slot);
        hdr.data.v2 = hdr.data.v2 + old_v2;
        sum_v2.write(slot, hdr.data.v2);
        bit<32> old_v3;
        sum_v3.read(old_v3, slot);
        hdr.data.v3 = hdr.data.v3 + old_v3;
        sum_v3.write(slot, hdr.data.v3);
        bit<32> old_v4;
        sum_v4.read(old_v4, slot);
        hdr.data.v4 = hdr.data.v4 + old_v4;
        sum_v4.write(slot, hdr.data.v4);
        bit<32> old_v5;
        sum_v5.read(old_v5, slot);
        hdr.data.v5 = hdr.data.v5 + old_v5;
        sum_v5.write(slot, hdr.data.v5);
        bit<32> old_v6;
        sum_v6.read(old_v6, slot);
        hdr.data.v6 = hdr.data.v6 + old_v6;
        sum_v6.write(slot, hdr.data.v6);
        bit<32> old_v7;
        sum_v7.read(old_v7, slot);
        hdr.data.v7 = hdr.data.v7 + old_v7;
        sum_v7.write(slot, hdr.data.v7);
        bit<32> old_v8;
        sum_v8.read(old_v8, slot);
        hdr.data.v8 = hdr.data.v8 + old_v8;
        sum_v8.write(slot, hdr.data.v8);
        bit<32> old_v9;
        sum_v9.read(old_v9, slot);
        hdr.data.v9 = hdr.data.v9 + old_v9;
        sum_v9.write(slot, hdr.data.v9);
        bit<32> old_v10;
        sum_v10.read(old_v10, slot);
        hdr.data.v10 = hdr.data.v10 + old_v10;
        sum_v10.write(slot, hdr.data.v10);
        bit<32> old_v11;
        sum_v11.read(old_v11, slot);
        hdr.data.v11 = hdr.data.v11 + old_v11;
        sum_v11.write(slot, hdr.data.v11);
        bit<32> old_v12;
        sum_v12.read(old_v12, slot);
        hdr.data.v12 = hdr.data.v12 + old_v12;
        sum_v12.write(slot, hdr.data.v12);
        bit<32> old_v13;
        sum_v13.read(old_v13, slot);
        hdr.data.v13 = hdr.data.v13 + old_v13;
        sum_v13.write(slot, hdr.data.v13);
        bit<32> old_v14;
        sum_v14.read(old_v14, slot);
        hdr.data.v14 = hdr.data.v14 + old_v14;
        sum_v14.write(slot, hdr.data.v14);
        bit<32> old_v15;
        sum_v15.read(old_v15, slot);
        hdr.data.v15 = hdr.data.v15 + old_v15;
        sum_v15.write(slot, hdr.data.v15);
        bit<32> old_v16;
        sum_v16.read(old_v16, slot);
        hdr.data.v16 = hdr.data.v16 + old_v16;
        sum_v16.write(slot, hdr.data.v16);
        bit<32> old_v17;
        sum_v17.read(old_v17, slot);
        hdr.data.v17 = hdr.data.v17 + old_v17;
        sum_v17.write(slot, hdr.data.v17);
        bit<32> old_v18;
        sum_v18.read(old_v18, slot);
        hdr.data.v18 = hdr.data.v18 + old_v18;
        sum_v18.write(slot, hdr.data.v18);
        bit<32> old_v19;
        sum_v19.read(old_v19, slot);
        hdr.data.v19 = hdr.data.v19 + old_v19;
        sum_v19.write(slot, hdr.data.v19);
        bit<32> old_v20;
        sum_v20.read(old_v20, slot);
        hdr.data.v20 = hdr.data.v20 + old_v20;
        sum_v20.write(slot, hdr.data.v20);
        bit<32> old_v21;
        sum_v21.read(old_v21, slot);
        hdr.data.v21 = hdr.data.v21 + old_v21;
        sum_v21.write(slot, hdr.data.v21);
        bit<32> old_v22;
        sum_v22.read(old_v22, slot);
        hdr.data.v22 = hdr.data.v22 + old_v22;
        sum_v22.write(slot, hdr.data.v22);
        bit<32> old_v23;
        sum_v23.read(old_v23, slot);
        hdr.data.v23 = hdr.data.v23 + old_v23;
        sum_v23.write(slot, hdr.data.v23);
        bit<32> old_v24;
        sum_v24.read(old_v24, slot);
        hdr.data.v24 = hdr.data.v24 + old_v24;
        sum_v24.write(slot, hdr.data.v24);
        bit<32> old_v25;
        sum_v25.read(old_v25, slot);
        hdr.data.v25 = hdr.data.v25 + old_v25;
        sum_v25.write(slot, hdr.data.v25);
        bit<32> old_v26;
        sum_v26.read(old_v26, slot);
        hdr.data.v26 = hdr.data.v26 + old_v26;
        sum_v26.write(slot, hdr.data.v26);
        bit<32> old_v27;
        sum_v27.read(old_v27, slot);
        hdr.data.v27 = hdr.data.v27 + old_v27;
        sum_v27.write(slot, hdr.data.v27);
        bit<32> old_v28;
        sum_v28.read(old_v28, slot);
        hdr.data.v28 = hdr.data.v28 + old_v28;
        sum_v28.write(slot, hdr.data.v28);
        bit<32> old_v29;
        sum_v29.read(old_v29, slot);
        hdr.data.v29 = hdr.data.v29 + old_v29;
        sum_v29.write(slot, hdr.data.v29);
        bit<32> old_v30;
        sum_v30.read(old_v30, slot);
        hdr.data.v30 = hdr.data.v30 + old_v30;
        sum_v30.write(slot, hdr.data.v30);
        bit<32> old_v31;
        sum_v31.read(old_v31, slot);
        hdr.data.v31 = hdr.data.v31 + old_v31;
        sum_v31.write(slot, hdr.data.v31);
        bit<32> old_v32;
        sum_v32.read(old_v32, slot);
        hdr.data.v32 = hdr.data.v32 + old_v32;
        sum_v32.write(slot, hdr.data.v32);
        bit<32> old_v33;
        sum_v33.read(old_v33, slot);
        hdr.data.v33 = hdr.data.v33 + old_v33;
        sum_v33.write(slot, hdr.data.v33);
        bit<32> old_v34;
        sum_v34.read(old_v34, slot);
        hdr.data.v34 = hdr.data.v34 + old_v34;
        sum_v34.write(slot, hdr.data.v34);
        bit<32> old_v35;
        sum_v35.read(old_v35, slot);
        hdr.data.v35 = hdr.data.v35 + old_v35;
        sum_v35.write(slot, hdr.data.v35);
        bit<32> old_v36;
        sum_v36.read(old_v36, slot);
        hdr.data.v36 = hdr.data.v36 + old_v36;
        sum_v36.write(slot, hdr.data.v36);
        bit<32> old_v37;
        sum_v37.read(old_v37, slot);
        hdr.data.v37 = hdr.data.v37 + old_v37;
        sum_v37.write(slot, hdr.data.v37);
        bit<32> old_v38;
        sum_v38.read(old_v38, slot);
        hdr.data.v38 = hdr.data.v38 + old_v38;
        sum_v38.write(slot, hdr.data.v38);
        bit<32> old_v39;
        sum_v39.read(old_v39, slot);
        hdr.data.v39 = hdr.data.v39 + old_v39;
        sum_v39.write(slot, hdr.data.v39);
        bit<32> old_v40;
        sum_v40.read(old_v40, slot);
        hdr.data.v40 = hdr.data.v40 + old_v40;
        sum_v40.write(slot, hdr.data.v40);
        bit<32> old_v41;
        sum_v41.read(old_v41, slot);
        hdr.data.v41 = hdr.data.v41 + old_v41;
        sum_v41.write(slot, hdr.data.v41);
        bit<32> old_v42;
        sum_v42.read(old_v42, slot);
        hdr.data.v42 = hdr.data.v42 + old_v42;
        sum_v42.write(slot, hdr.data.v42);
        bit<32> old_v43;
        sum_v43.read(old_v43, slot);
        hdr.data.v43 = hdr.data.v43 + old_v43;
        sum_v43.write(slot, hdr.data.v43);
        bit<32> old_v44;
        sum_v44.read(old_v44, slot);
        hdr.data.v44 = hdr.data.v44 + old_v44;
        sum_v44.write(slot, hdr.data.v44);
        bit<32> old_v45;
        sum_v45.read(old_v45, slot);
        hdr.data.v45 = hdr.data.v45 + old_v45;
        sum_v45.write(slot, hdr.data.v45);
        bit<32> old_v46;
        sum_v46.read(old_v46, slot);
        hdr.data.v46 = hdr.data.v46 + old_v46;
        sum_v46.write(slot, hdr.data.v46);
        bit<32> old_v47;
        sum_v47.read(old_v47, slot);
        hdr.data.v47 = hdr.data.v47 + old_v47;
        sum_v47.write(slot, hdr.data.v47);
        bit<32> old_v48;
        sum_v48.read(old_v48, slot);
        hdr.data.v48 = hdr.data.v48 + old_v48;
        sum_v48.write(slot, hdr.data.v48);
        bit<32> old_v49;
        sum_v49.read(old_v49, slot);
        hdr.data.v49 = hdr.data.v49 + old_v49;
        sum_v49.write(slot, hdr.data.v49);
        bit<32> old_v50;
        sum_v50.read(old_v50, slot);
        hdr.data.v50 = hdr.data.v50 + old_v50;
        sum_v50.write(slot, hdr.data.v50);
        bit<32> old_v51;
        sum_v51.read(old_v51, slot);
        hdr.data.v51 = hdr.data.v51 + old_v51;
        sum_v51.write(slot, hdr.data.v51);
        bit<32> old_v52;
        sum_v52.read(old_v52, slot);
        hdr.data.v52 = hdr.data.v52 + old_v52;
        sum_v52.write(slot, hdr.data.v52);
        bit<32> old_v53;
        sum_v53.read(old_v53, slot);
        hdr.data.v53 = hdr.data.v53 + old_v53;
        sum_v53.write(slot, hdr.data.v53);
        bit<32> old_v54;
        sum_v54.read(old_v54, slot);
        hdr.data.v54 = hdr.data.v54 + old_v54;
        sum_v54.write(slot, hdr.data.v54);
        bit<32> old_v55;
        sum_v55.read(old_v55, slot);
        hdr.data.v55 = hdr.data.v55 + old_v55;
        sum_v55.write(slot, hdr.data.v55);
        bit<32> old_v56;
        sum_v56.read(old_v56, slot);
        hdr.data.v56 = hdr.data.v56 + old_v56;
        sum_v56.write(slot, hdr.data.v56);
        bit<32> old_v57;
        sum_v57.read(old_v57, slot);
        hdr.data.v57 = hdr.data.v57 + old_v57;
        sum_v57.write(slot, hdr.data.v57);
        bit<32> old_v58;
        sum_v58.read(old_v58, slot);
        hdr.data.v58 = hdr.data.v58 + old_v58;
        sum_v58.write(slot, hdr.data.v58);
        bit<32> old_v59;
        sum_v59.read(old_v59, slot);
        hdr.data.v59 = hdr.data.v59 + old_v59;
        sum_v59.write(slot, hdr.data.v59);
        bit<32> old_v60;
        sum_v60.read(old_v60, slot);
        hdr.data.v60 = hdr.data.v60 + old_v60;
        sum_v60.write(slot, hdr.data.v60);
        bit<32> old_v61;
        sum_v61.read(old_v61, slot);
        hdr.data.v61 = hdr.data.v61 + old_v61;
        sum_v61.write(slot, hdr.data.v61);
        bit<32> old_v62;
        sum_v62.read(old_v62, slot);
        hdr.data.v62 = hdr.data.v62 + old_v62;
        sum_v62.write(slot, hdr.data.v62);
        bit<32> old_v63;
        sum_v63.read(old_v63, slot);
        hdr.data.v63 = hdr.data.v63 + old_v63;
        sum_v63.write(slot, hdr.data.v63);
    }
    action deliver() {
        sm.mcast_grp = hdr.agg.group;
        sm.egress_spec = sm.ingress_port;
    }
    action drop() {
        mark_to_drop(sm);
    }

    apply {
        if (hdr.data.isValid()) {
            bit<16> seen;
            senders.read(seen, (bit<32>)hdr.agg.slot);
            if ((seen & hdr.agg.sender) != 0) {
                drop();
            } else {
                if (seen == 0) {
                    store();
                } else {
                    add();
                }
                seen = seen | hdr.agg.sender;
                if (seen == hdr.agg.everybody) {
                    seen = 0;
                    deliver();
                } else {
                    drop();
                }
                senders.write((bit<32>)hdr.agg.slot, seen);
            }
        } else {
            drop();
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
