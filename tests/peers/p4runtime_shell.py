"""A controller written with p4runtime-shell: does a bit of everything on packet_io.p4, and prints what it saw as JSON.

python p4runtime_shell.py ADDRESS PROGRAM.p4info.txtpb PROGRAM.json
"""

import contextlib
import io
import json
import sys

import p4runtime_sh.shell as sh


def entry(action, **args):
    new_entry = sh.TableEntry("MyIngress.stations")(action=f"MyIngress.{action}")
    new_entry.match["hdr.eth.dst"] = "00:00:00:00:00:01"
    for name, value in args.items():
        new_entry.action[name] = value
    return new_entry


def actions():
    return [item.action.action_name.rpartition(".")[2] for item in sh.TableEntry("MyIngress.stations").read()]


def control(saw):
    entry("send", port="3").insert()
    saw["inserted"] = actions()
    try:
        entry("send", port="3").insert()
    except Exception as error:  # of a class that moved between versions
        saw["refused"] = "ALREADY_EXISTS" if "ALREADY_EXISTS" in str(error) else str(error)
    entry("punt", reason="9").modify()
    saw["modified"] = actions()
    sh.MulticastGroupEntry(7).add(1).add(2).add(3, 1).insert()
    saw["groups"] = [group.group_id for group in sh.MulticastGroupEntry(7).read()]
    sh.CloneSessionEntry(5).add(510, 33).insert()
    saw["sessions"] = [session.session_id for session in sh.CloneSessionEntry(5).read()]
    frame = bytes.fromhex("000000000001 000000000002 0800") + bytes(46)
    packets = []
    with sh.PacketIn() if hasattr(sh.PacketIn, "__enter__") else contextlib.nullcontext(sh.PacketIn()) as received:
        sh.PacketOut(payload=frame, egress_port="4", mark="0x1234").send()
        for message in received.sniff(timeout=3):
            values = {item.metadata_id: int.from_bytes(item.value, "big") for item in message.packet.metadata}
            packets.append([values[1], values[2], values[4], message.packet.payload.hex()])
    saw["packets"] = sorted(packets)
    for item in sh.TableEntry("MyIngress.stations").read():
        item.delete()
    saw["left"] = actions()


def main(address, p4info, program):
    saw = {}
    with contextlib.redirect_stdout(io.StringIO()):
        sh.setup(device_id=0, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))
        saw["primary"] = True
        control(saw)
        sh.teardown()
    print(json.dumps(saw))


main(*sys.argv[1:])
