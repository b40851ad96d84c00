from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Address(_message.Message):
    __slots__ = ("ip", "port")
    IP_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ip: str
    port: int
    def __init__(self, ip: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "job", "rank", "world_size", "secret", "data_address", "slots", "payload_bytes", "wire", "receive_buffer_bytes", "timeout_s", "host", "pid", "transport", "mac", "authenticate", "more_addresses", "queues", "resumption", "deadline_s", "large_packets")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATE_FIELD_NUMBER: _ClassVar[int]
    MORE_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RESUMPTION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    LARGE_PACKETS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    rank: int
    world_size: int
    secret: str
    data_address: Address
    slots: int
    payload_bytes: int
    wire: int
    receive_buffer_bytes: int
    timeout_s: float
    host: str
    pid: int
    transport: str
    mac: int
    authenticate: bool
    more_addresses: _containers.RepeatedCompositeFieldContainer[Address]
    queues: int
    resumption: Resumption
    deadline_s: float
    large_packets: bool
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., secret: _Optional[str] = ..., data_address: _Optional[_Union[Address, _Mapping]] = ..., slots: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., wire: _Optional[int] = ..., receive_buffer_bytes: _Optional[int] = ..., timeout_s: _Optional[float] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., transport: _Optional[str] = ..., mac: _Optional[int] = ..., authenticate: bool = ..., more_addresses: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., queues: _Optional[int] = ..., resumption: _Optional[_Union[Resumption, _Mapping]] = ..., deadline_s: _Optional[float] = ..., large_packets: bool = ...) -> None: ...

class Resumption(_message.Message):
    __slots__ = ("lineage", "epoch", "rounds", "former_tags", "has_no_result")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FORMER_TAGS_FIELD_NUMBER: _ClassVar[int]
    HAS_NO_RESULT_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    epoch: int
    rounds: _containers.RepeatedScalarFieldContainer[bytes]
    former_tags: _containers.RepeatedScalarFieldContainer[int]
    has_no_result: bool
    def __init__(self, lineage: _Optional[int] = ..., epoch: _Optional[int] = ..., rounds: _Optional[_Iterable[bytes]] = ..., former_tags: _Optional[_Iterable[int]] = ..., has_no_result: bool = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("joined", "started", "peer_lost", "peer_left", "ended", "disagreement")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PEER_LOST_FIELD_NUMBER: _ClassVar[int]
    PEER_LEFT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    started: Started
    peer_lost: PeerLost
    peer_left: PeerLeft
    ended: Ended
    disagreement: Disagreement
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., peer_lost: _Optional[_Union[PeerLost, _Mapping]] = ..., peer_left: _Optional[_Union[PeerLeft, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., disagreement: _Optional[_Union[Disagreement, _Mapping]] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("job_id", "job_tag", "isn", "slots", "window", "payload_bytes", "wire", "data_address", "peers", "link", "segment", "padded", "dense_only", "key", "collectives", "more_parts", "queues", "rounds", "epoch", "halves", "only_sums")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_TAG_FIELD_NUMBER: _ClassVar[int]
    ISN_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    DENSE_ONLY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    MORE_PARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HALVES_FIELD_NUMBER: _ClassVar[int]
    ONLY_SUMS_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    job_tag: int
    isn: int
    slots: int
    window: int
    payload_bytes: int
    wire: int
    data_address: Address
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    link: Link
    segment: str
    padded: bool
    dense_only: bool
    key: bytes
    collectives: bool
    more_parts: _containers.RepeatedCompositeFieldContainer[Part]
    queues: int
    rounds: _containers.RepeatedScalarFieldContainer[bytes]
    epoch: int
    halves: bool
    only_sums: bool
    def __init__(self, job_id: _Optional[int] = ..., job_tag: _Optional[int] = ..., isn: _Optional[int] = ..., slots: _Optional[int] = ..., window: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., wire: _Optional[int] = ..., data_address: _Optional[_Union[Address, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., link: _Optional[_Union[Link, _Mapping]] = ..., segment: _Optional[str] = ..., padded: bool = ..., dense_only: bool = ..., key: _Optional[bytes] = ..., collectives: bool = ..., more_parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., queues: _Optional[int] = ..., rounds: _Optional[_Iterable[bytes]] = ..., epoch: _Optional[int] = ..., halves: bool = ..., only_sums: bool = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("data_address", "job_tag", "isn", "key", "segment")
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_TAG_FIELD_NUMBER: _ClassVar[int]
    ISN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    data_address: Address
    job_tag: int
    isn: int
    key: bytes
    segment: str
    def __init__(self, data_address: _Optional[_Union[Address, _Mapping]] = ..., job_tag: _Optional[int] = ..., isn: _Optional[int] = ..., key: _Optional[bytes] = ..., segment: _Optional[str] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("where", "mac", "switch_mac")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    SWITCH_MAC_FIELD_NUMBER: _ClassVar[int]
    where: str
    mac: int
    switch_mac: int
    def __init__(self, where: _Optional[str] = ..., mac: _Optional[int] = ..., switch_mac: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "host", "pid")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class PeerLost(_message.Message):
    __slots__ = ("ranks", "reason")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class PeerLeft(_message.Message):
    __slots__ = ("ranks", "reason")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Disagreement(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class WaitingRequest(_message.Message):
    __slots__ = ("token", "part", "queues")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    token: str
    part: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueReport]
    def __init__(self, token: _Optional[str] = ..., part: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueReport, _Mapping]]] = ...) -> None: ...

class WaitingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueReport(_message.Message):
    __slots__ = ("calls", "awaited", "index", "what")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    calls: int
    awaited: int
    index: int
    what: str
    def __init__(self, calls: _Optional[int] = ..., awaited: _Optional[int] = ..., index: _Optional[int] = ..., what: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("token", "calls", "loading")
    class CallsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LoadingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    token: str
    calls: _containers.ScalarMap[str, int]
    loading: _containers.ScalarMap[str, float]
    def __init__(self, token: _Optional[str] = ..., calls: _Optional[_Mapping[str, int]] = ..., loading: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CountReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: str
    def __init__(self, secret: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "uptime_s", "dataplane", "events_address", "refused", "totals", "jobs", "tunnel_addresses", "hidden_jobs")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TotalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    DATAPLANE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TUNNEL_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_s: float
    dataplane: DataplaneStatus
    events_address: str
    refused: _containers.ScalarMap[str, int]
    totals: _containers.ScalarMap[str, int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    tunnel_addresses: _containers.RepeatedScalarFieldContainer[str]
    hidden_jobs: int
    def __init__(self, version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., dataplane: _Optional[_Union[DataplaneStatus, _Mapping]] = ..., events_address: _Optional[str] = ..., refused: _Optional[_Mapping[str, int]] = ..., totals: _Optional[_Mapping[str, int]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., tunnel_addresses: _Optional[_Iterable[str]] = ..., hidden_jobs: _Optional[int] = ...) -> None: ...

class DataplaneStatus(_message.Message):
    __slots__ = ("kind", "address", "slot_capacity", "slots_allocated", "receive_buffer_bytes", "transports", "mac", "switch", "most_parts", "memory")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOT_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    MOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    address: Address
    slot_capacity: int
    slots_allocated: int
    receive_buffer_bytes: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    mac: int
    switch: str
    most_parts: int
    memory: str
    def __init__(self, kind: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., slot_capacity: _Optional[int] = ..., slots_allocated: _Optional[int] = ..., receive_buffer_bytes: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., mac: _Optional[int] = ..., switch: _Optional[str] = ..., most_parts: _Optional[int] = ..., memory: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job_id", "name", "state", "reason", "protocol", "world_size", "age_s", "slots", "slots_in_use", "payload_bytes", "wire", "missing", "goodput_bps", "ranks", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_BPS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    name: str
    state: str
    reason: str
    protocol: int
    world_size: int
    age_s: float
    slots: int
    slots_in_use: int
    payload_bytes: int
    wire: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    goodput_bps: float
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    epoch: int
    def __init__(self, job_id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., protocol: _Optional[int] = ..., world_size: _Optional[int] = ..., age_s: _Optional[float] = ..., slots: _Optional[int] = ..., slots_in_use: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., wire: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ..., goodput_bps: _Optional[float] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "state", "address", "host", "pid", "counters", "rates", "calls", "loading")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class CallsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LoadingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: str
    address: Address
    host: str
    pid: int
    counters: _containers.ScalarMap[str, int]
    rates: _containers.ScalarMap[str, float]
    calls: _containers.ScalarMap[str, int]
    loading: _containers.ScalarMap[str, float]
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., rates: _Optional[_Mapping[str, float]] = ..., calls: _Optional[_Mapping[str, int]] = ..., loading: _Optional[_Mapping[str, float]] = ...) -> None: ...
