"""A controller written with Finsy: does a bit of everything on packet_io.p4, and prints what it saw as JSON.

python p4runtime_finsy.py ADDRESS PROGRAM.p4info.txtpb PROGRAM.json
"""

import asyncio
import json
import sys
from pathlib import Path

import finsy as fy

ADDRESS = "00:00:00:00:00:01"


def entry(action=None):
    return fy.P4TableEntry("stations", match=fy.Match({"hdr.eth.dst": ADDRESS}), action=action)


async def control(switch, saw):
    async def actions():
        return [str(item.action) async for item in switch.read(fy.P4TableEntry("stations"))]

    await switch.write([+entry(fy.Action("send", port=3))])
    saw["inserted"] = await actions()
    try:
        await switch.write([+entry(fy.Action("send", port=3))])
    except fy.P4ClientError as error:
        saw["refused"] = error.details[0].canonical_code.name
    await switch.write([~entry(fy.Action("punt", reason=9))])
    saw["modified"] = await actions()
    await switch.write([+fy.P4MulticastGroupEntry(7, replicas=(1, 2, (3, 1)))])
    saw["groups"] = [item.multicast_group_id async for item in switch.read(fy.P4MulticastGroupEntry())]
    await switch.write([+fy.P4CloneSessionEntry(5, replicas=((510, 33),))])
    saw["sessions"] = [item.session_id async for item in switch.read(fy.P4CloneSessionEntry())]
    # Sent out of port 4, which is a socket that sends it back into port 4.
    frame = bytes.fromhex("000000000001 000000000002 0800") + bytes(46)
    await switch.write([fy.P4PacketOut(frame, egress_port=4, unused=0, mark=0x1234)])
    packets = []
    async for packet in switch.read_packets():
        packets.append([packet["ingress_port"], packet["is_clone"], packet["reason"], packet.payload.hex()])
        if len(packets) == 2:
            break
    saw["packets"] = sorted(packets)
    await switch.delete_all()
    saw["left"] = await actions()


async def main(address, p4info, program):
    saw = {}
    options = fy.SwitchOptions(p4info=Path(p4info), p4blob=Path(program), device_id=0)
    async with fy.Switch("one", address, options) as switch:
        saw["primary"] = switch.is_primary
        await control(switch, saw)
    print(json.dumps(saw))


asyncio.run(main(*sys.argv[1:]))
