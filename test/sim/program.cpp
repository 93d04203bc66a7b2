#include "program.hpp"

#include "wire.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace verbena::sim {

namespace {

constexpr std::size_t kWords = 8;  // At the start of each target zone, for atomics.

/// What the requests of one end of one pair, in this phase, still do. A request that would run into them, where the
/// specification keeps no order, carries a fence (IBTA table 76).
struct UnderWay {
  std::vector<Range> results;  ///< That READs and atomics bring.
  std::vector<Range> read;     ///< At the peer, by READs and atomics.
  std::vector<Range> sources;
  bool is_stuck = false;  ///< A message waits for a receive for ever: nothing of this ends with the phase.
};

bool any_overlaps(const std::vector<Range>& ranges, const Range& one) {
  return std::ranges::any_of(ranges, [&](const Range& each) { return each.overlaps(one); });
}

class Author {
 public:
  explicit Author(std::uint64_t seed) : random_(seed * 0x9E3779B9 + 7) { program_.seed = seed; }

  Program write() {
    const std::uint64_t pairs = random_.between(2, 3);
    for (std::uint64_t i = 0; i < pairs; ++i) program_.pairs.push_back(plan_pair());
    windows_.resize(pairs);
    under_way_.resize(pairs);
    const std::uint64_t phases = random_.between(3, 8);
    for (std::uint64_t i = 0; i < phases; ++i) write_phase();
    return std::move(program_);
  }

 private:
  struct Window {
    std::uint32_t variant = 0;
    bool is_bound = false;
    Range range;
  };

  PairPlan plan_pair() {
    PairPlan pair;
    pair.type = random_.one_in(4) ? IBV_QPT_UC : IBV_QPT_RC;
    constexpr std::uint32_t kAll = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    constexpr std::array<std::uint32_t, 3> kRights = {IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
                                                      IBV_ACCESS_REMOTE_ATOMIC};
    for (std::uint32_t& access : pair.access) access = random_.one_in(8) ? kAll & ~kRights[random_.below(3)] : kAll;
    if (pair.type == IBV_QPT_UC) pair.access[0] = pair.access[1] = IBV_ACCESS_REMOTE_WRITE;
    pair.signal_all = random_.one_in(3);
    pair.is_shared = random_.one_in(4);
    // Who waits on a shared queue for ever would compete with the others for what comes later.
    pair.rnr_retry = pair.is_shared || random_.one_in(2) ? static_cast<std::uint8_t>(random_.below(3)) : 7;
    return pair;
  }

  void write_phase() {
    program_.phases.emplace_back();
    bool is_shared_taken = false;
    for (std::uint32_t pair = 0; pair < program_.pairs.size(); ++pair) {
      std::uint32_t side = random_.one_in(3) ? 1 : 0;
      // One pair at a time takes receives of the shared queue: which one gets which is open otherwise.
      if (program_.pairs[pair].is_shared && side == 0 && std::exchange(is_shared_taken, true)) side = 1;
      write_requests(pair, side);
    }
  }

  void write_requests(std::uint32_t pair, std::uint32_t side) {
    UnderWay& under_way = under_way_[pair][side];
    if (!under_way.is_stuck) under_way = {};
    is_short_ = under_way.is_stuck || random_.one_in(7);
    std::uint64_t takers = 0;
    const std::uint64_t count = random_.between(1, 7);
    std::vector<Operation>& operations = program_.phases.back().operations;
    const std::size_t first = operations.size();
    for (std::uint64_t i = 0; i < count; ++i) {
      Operation operation = write_operation(pair, side);
      takers += takes_receive(operation.opcode) ? 1 : 0;
      operations.push_back(std::move(operation));
    }
    // All before it is over when it completes.
    if (operations.size() != first) operations.back().flags |= IBV_SEND_SIGNALED;
    std::uint64_t receives = is_short_ ? random_.below(takers + 1) : takers;
    if (!is_short_ && random_.one_in(7)) receives += random_.between(1, 2);
    const PairPlan& plan = program_.pairs[pair];
    if (receives < takers && plan.type == IBV_QPT_RC && plan.rnr_retry == 7) under_way.is_stuck = true;
    for (std::uint64_t i = 0; i < receives; ++i) write_receive(pair, 1 - side);
  }

  Range somewhere(std::uint32_t pair, Zone zone, std::size_t length) {
    const std::size_t start = pair * kShare + static_cast<std::size_t>(zone) * kZone;
    return {start + random_.below(kZone - length + 1), length};
  }
  std::size_t some_length() {
    constexpr std::array<std::size_t, 12> kLengths = {0, 1, 7, 8, 48, 63, 64, 65, 200, 1000, 4097, 20000};
    return random_.one_in(2) ? kLengths[random_.below(kLengths.size())] : random_.below(600);
  }

  void write_receive(std::uint32_t pair, std::uint32_t side) {
    PostedReceive receive{.pair = pair, .side = side, .wr_id = ++wr_ids_, .local = {}};
    // Of its own: a receive's bytes are nobody else's.
    // Too short, or with a bad key, only where it is known which queue pair takes it. (A message that UC loses for its
    // length leaves a shared receive with its queue pair on the soft NIC: docs/soft-nic.md, Limits.)
    const bool is_shared = program_.pairs[pair].is_shared && side == 1;
    const std::size_t length = !is_shared && random_.one_in(12) ? random_.below(100) : 21000;
    std::size_t& used = receive_bytes_[{pair, side}];
    if (used + length > kZone) used = 0;
    const std::size_t start = pair * kShare + static_cast<std::size_t>(Zone::kReceives) * kZone + used;
    used += length;
    receive.local = split({start, length});
    // Not on UC: there the soft NIC's WRITEs go on landing until the failed receiver polls (docs/soft-nic.md, Limits).
    const bool may_be_bad = !is_shared && program_.pairs[pair].type == IBV_QPT_RC && !receive.local.empty();
    if (may_be_bad && random_.one_in(40))
      receive.local_key = random_.one_in(2) ? LocalKey::kUnknown : LocalKey::kReadOnly;
    program_.phases.back().receives.push_back(std::move(receive));
  }

  /// Up to three segments without an empty one: a length of 0 is 2^31 to some devices.
  std::vector<Range> split(const Range& whole) {
    std::vector<Range> parts;
    Range rest = whole;
    while (parts.size() < 2 && rest.length > 1 && random_.one_in(2)) {
      const std::size_t length = random_.between(1, rest.length - 1);
      parts.push_back({rest.offset, length});
      rest = {rest.offset + length, rest.length - length};
    }
    if (rest.length != 0) parts.push_back(rest);
    return parts;
  }

  ibv_wr_opcode some_opcode(std::uint32_t pair) {
    constexpr std::array<ibv_wr_opcode, 10> kReliable = {IBV_WR_SEND,
                                                         IBV_WR_SEND_WITH_IMM,
                                                         IBV_WR_RDMA_WRITE,
                                                         IBV_WR_RDMA_WRITE,
                                                         IBV_WR_RDMA_READ,
                                                         IBV_WR_RDMA_READ,
                                                         IBV_WR_RDMA_WRITE_WITH_IMM,
                                                         IBV_WR_ATOMIC_CMP_AND_SWP,
                                                         IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                         IBV_WR_BIND_MW};
    constexpr std::array<ibv_wr_opcode, 4> kUnreliable = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                                                          IBV_WR_RDMA_WRITE_WITH_IMM};
    if (program_.pairs[pair].type == IBV_QPT_RC) return kReliable[random_.below(kReliable.size())];
    return random_.one_in(30) ? IBV_WR_RDMA_READ : kUnreliable[random_.below(kUnreliable.size())];
  }

  Operation write_operation(std::uint32_t pair, std::uint32_t side) {
    Operation operation{.pair = pair, .side = side, .opcode = some_opcode(pair), .wr_id = ++wr_ids_, .local = {}};
    if (random_.one_in(2)) operation.flags |= IBV_SEND_SIGNALED;
    if (operation.opcode == IBV_WR_BIND_MW) {
      write_window_operation(operation);
      return operation;
    }
    operation.immediate = static_cast<std::uint32_t>(random_.next());
    operation.operand = random_.below(3);
    operation.swap = random_.next();
    // Once a binding: a second time, the soft NIC tells the receiver only (docs/soft-nic.md, Limits).
    Window& of_peer = windows_[pair][1 - side];
    if (operation.opcode == IBV_WR_SEND && of_peer.is_bound && !is_short_ && random_.one_in(4)) {
      if (program_.pairs[pair].type == IBV_QPT_RC) {
        operation.opcode = IBV_WR_SEND_WITH_INV;
        fence(operation);  // It must not take the window from under a READ.
        operation.variant = random_.one_in(12) ? of_peer.variant + 1 : of_peer.variant;
        of_peer.is_bound = false;
      }
    }
    if (is_read_or_atomic(operation.opcode)) {
      choose_results(operation);
    } else {
      choose_sources(operation);
    }
    choose_remote(operation);
    if (random_.one_in(60)) spoil(operation);
    // Refused, or without a receive? The responder looks at the receive of a message of one packet first, and of a
    // longer one last (IBTA 9.7.4.1). So there is no such message where receives are short. For the same reason it is
    // open whether the bytes of an unreliable one are there when it is lost for want of a receive.
    const bool is_open = program_.pairs[pair].type == IBV_QPT_UC || may_be_refused(operation);
    if (is_short_ && operation.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && is_open) operation.opcode = IBV_WR_RDMA_WRITE;
    return operation;
  }

  void write_window_operation(Operation& operation) {
    Window& own = windows_[operation.pair][operation.side];
    if (own.is_bound && !random_.one_in(20)) {
      operation.opcode = IBV_WR_LOCAL_INV;
      operation.variant = random_.one_in(20) ? own.variant + 1 : own.variant;
      own.is_bound = false;
      return;
    }
    operation.flags |= IBV_SEND_SIGNALED;  // So that the peer can be told of it.
    operation.bound = somewhere(operation.pair, Zone::kTarget, random_.between(64, 8192));
    operation.access = IBV_ACCESS_REMOTE_READ | (random_.one_in(4) ? 0U : unsigned{IBV_ACCESS_REMOTE_WRITE});
    // The old key once more is an error.
    if (!random_.one_in(20)) ++own.variant;
    operation.variant = own.variant;
    own.is_bound = true;
    own.range = operation.bound;
  }

  void choose_sources(Operation& operation) {
    UnderWay& under_way = under_way_[operation.pair][operation.side];
    const Range range = somewhere(operation.pair, random_.one_in(3) ? Zone::kResults : Zone::kSource, some_length());
    if (any_overlaps(under_way.results, range)) fence(operation);
    under_way.sources.push_back(range);
    operation.local = split(range);
    if (range.length <= 64 && random_.one_in(3)) operation.flags |= IBV_SEND_INLINE;
  }

  void choose_results(Operation& operation) {
    UnderWay& under_way = under_way_[operation.pair][operation.side];
    const std::size_t length = is_atomic(operation.opcode) ? sizeof(std::uint64_t) : some_length();
    Range range = somewhere(operation.pair, Zone::kResults, length);
    // The NIC may fetch what is sent until it is complete, so nothing is brought there meanwhile.
    for (int tries = 0; tries < 8 && any_overlaps(under_way.sources, range); ++tries)
      range = somewhere(operation.pair, Zone::kResults, length);
    if (any_overlaps(under_way.sources, range)) {
      operation.opcode = IBV_WR_SEND;
      operation.local = {};
      return;
    }
    if (any_overlaps(under_way.results, range)) fence(operation);
    under_way.results.push_back(range);
    operation.local = is_atomic(operation.opcode) ? std::vector<Range>{range} : split(range);
  }

  void choose_remote(Operation& operation) {
    if (!is_write(operation.opcode) && !is_read_or_atomic(operation.opcode)) return;
    UnderWay& under_way = under_way_[operation.pair][operation.side];
    std::size_t length = 0;
    for (const Range& part : operation.local) length += part.length;
    Range range = somewhere(operation.pair, Zone::kTarget, length);
    if (is_atomic(operation.opcode))
      range.offset = zone_start(operation.pair, Zone::kTarget) + random_.below(kWords) * 8;
    if (operation.opcode == IBV_WR_RDMA_READ && random_.one_in(2))
      range = somewhere(operation.pair, Zone::kSource, length);
    const Window& of_peer = windows_[operation.pair][1 - operation.side];
    if (of_peer.variant != 0 && random_.one_in(3) && length <= of_peer.range.length && !is_atomic(operation.opcode)) {
      operation.remote_key = RemoteKey::kWindow;
      operation.variant = of_peer.variant - (random_.one_in(5) ? 1 : 0);
      range = {of_peer.range.offset + random_.below(of_peer.range.length - length + 1), length};
    }
    const bool changes = operation.opcode != IBV_WR_RDMA_READ;
    if (changes && any_overlaps(under_way.read, range)) fence(operation);
    if (is_read_or_atomic(operation.opcode)) under_way.read.push_back(range);
    operation.remote = range.offset;
  }

  /// One mistake a request, so that it is clear which one is told.
  void spoil(Operation& operation) {
    const bool is_inline = (operation.flags & IBV_SEND_INLINE) != 0;
    const bool is_remote = is_write(operation.opcode) || is_read_or_atomic(operation.opcode);
    if (operation.local.empty()) return;
    if (!is_remote || random_.one_in(3)) {
      if (is_inline) return;
      constexpr std::array<LocalKey, 3> kKeys = {LocalKey::kUnknown, LocalKey::kOtherDomain, LocalKey::kReadOnly};
      operation.local_key = kKeys[random_.below(is_read_or_atomic(operation.opcode) ? 3 : 2)];
      return;
    }
    if (is_atomic(operation.opcode) && random_.one_in(3)) {
      operation.remote += 4;
      return;
    }
    constexpr std::array<RemoteKey, 4> kKeys = {RemoteKey::kUnknown, RemoteKey::kOtherDomain, RemoteKey::kLocal,
                                                RemoteKey::kReadOnly};
    operation.remote_key = kKeys[random_.below(operation.opcode == IBV_WR_RDMA_READ ? 3 : 4)];
    if (random_.one_in(4) && operation.opcode != IBV_WR_RDMA_READ) operation.remote_key = RemoteKey::kReadOnly;
    if (!random_.one_in(5) || is_atomic(operation.opcode)) return;
    operation.remote_key = RemoteKey::kGood;
    // Past the end, be it by one byte.
    operation.remote = program_.pairs.size() * kShare - random_.below(operation.local.back().length);
  }

  [[nodiscard]] bool may_be_refused(const Operation& operation) const {
    const bool is_accepted = (program_.pairs[operation.pair].access[1 - operation.side] & IBV_ACCESS_REMOTE_WRITE) != 0;
    // Of what goes past the end, the start is in the last zone, which is not for WRITEs.
    const bool is_in_place = operation.remote < program_.pairs.size() * kShare - kZone;
    return operation.remote_key != RemoteKey::kGood || !is_accepted || !is_in_place;
  }

  void fence(Operation& operation) {
    operation.flags |= IBV_SEND_FENCE;
    UnderWay& under_way = under_way_[operation.pair][operation.side];
    under_way.results.clear();
    under_way.read.clear();
  }
  static std::size_t zone_start(std::uint32_t pair, Zone zone) {
    return pair * kShare + static_cast<std::size_t>(zone) * kZone;
  }

  Random random_;
  Program program_;
  std::uint64_t wr_ids_ = 0;
  bool is_short_ = false;  ///< Receives of what is being written are, or may be, too few.
  std::vector<std::array<Window, 2>> windows_;
  std::vector<std::array<UnderWay, 2>> under_way_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> receive_bytes_;
};

}  // namespace

bool takes_receive(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

Program make_program(std::uint64_t seed) { return Author(seed).write(); }

}  // namespace verbena::sim
