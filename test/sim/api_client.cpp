#include "api_parts.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace verbena::sim::api {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kNamedBytes = 4096;
/// Memory is cut at multiples of this: a run repeats only where registered memory begins at one.
constexpr std::size_t kLine = 64;
/// Of registered memory: room for each operation that is under way.
constexpr std::size_t kSlots = 8;
constexpr std::size_t kSlotBytes = 4096;
/// In which what is under way is drained: the simulated NIC flushes it at once.
constexpr Nanoseconds kDrain = 2 * kMs;
/// A goodbye lingers, and what is under way is drained.
constexpr Nanoseconds kCloseTime = kLinger + kDrain;
/// What a connect may take past its deadline, whatever becomes of the sockets of its handshake.
constexpr Nanoseconds kConnects = 5 * kMs;
/// In which a thread hears of the end.
constexpr Nanoseconds kHears = 1 * kMs;

/// Four pages, which begin at an even one.
constexpr std::size_t kPhysicalBytes = 4 * kPage;

/// So many of the bytes that begin at a multiple of `alignment`.
[[nodiscard]] std::span<std::byte> inside(std::vector<std::byte>& bytes, std::size_t alignment, std::size_t length) {
  void* first = bytes.data();
  std::size_t room = bytes.size();
  return {static_cast<std::byte*>(std::align(alignment, length, first, room)), length};
}

}  // namespace

struct Client::Started {
  enum class Kind : std::uint8_t { kWrite, kRead, kAdd, kSwap };
  Kind kind = Kind::kWrite;
  std::uint64_t cookie = 0;
  std::size_t slot = 0;
  std::size_t offset = 0;
  std::size_t length = 0;
  std::uint64_t number = 0;  ///< Of the write or the read.
  Sum::Add add{};
  std::uint64_t expected = 0;
  std::uint64_t desired = 0;
};

/// Memory of the client's own that was deregistered: nobody writes there any more.
struct Client::Withdrawn {
  std::vector<std::byte> memory;
  std::vector<std::byte> before;
};

/// A connection with all that the client knows of it; its handler.
class Client::Peer final : public rdma::Handler {
 public:
  Peer(Stage& owner, Link& its_link) noexcept : stage(owner), link(its_link) {}
  [[nodiscard]] Caller caller() const noexcept { return {link, *connection, false, has_thread, is_shared}; }
  [[nodiscard]] bool is_alive() const noexcept { return connection->failure() == Status::kOk; }
  void take(const rdma::Message& message);
  void complete(const rdma::Completion& completion);
  /// The last one has not begun.
  void refuse_last();

  void on_message(rdma::Connection&, const rdma::Message& message) noexcept override { take(message); }
  void on_complete(rdma::Connection&, const rdma::Completion& completion) noexcept override { complete(completion); }
  void on_disconnect(rdma::Connection&, Status reason) noexcept override;

  Stage& stage;
  Link& link;
  std::unique_ptr<rdma::Connection> connection;
  bool has_thread = false;
  bool receives = true;   ///< By calls.
  bool completes = true;  ///< By calls.
  bool is_shared = false;
  rdma::Memory memory;
  rdma::Memory named;
  std::vector<std::byte> own;  ///< Around the bytes of `named`, where they are the client's own.
  std::deque<Withdrawn> withdrawn;
  std::vector<std::byte> around_physical;
  rdma::Memory physical;
  rdma::Window board;
  std::deque<Started> started;
  std::uint64_t last_cookie = 0;
  std::uint64_t last_swap = 0;
  bool is_told = false;
  bool is_starting = false;  ///< The last of `started` may be refused.
};

void Client::Peer::take(const rdma::Message& message) {
  std::string wrong;
  const Stream::Note* const note = link.down.take(message, connection->window(), wrong);
  if (note != nullptr && note->region != nullptr && note->length != 0) {
    note->region->end_write(note->write, true);
    wrong = link.here->look(note->offset, note->length);
  }
  if (!wrong.empty()) stage.fail(fmt::format("link {}: the client: {}", link.number, wrong));
  stage.tasks().wake(this);
}

void Client::Peer::on_disconnect(rdma::Connection&, Status reason) noexcept {
  stage.tell("link {}: the client is told of the end: {}", link.number, to_string(reason));
  if (std::exchange(is_told, true)) stage.fail("on_disconnect comes twice");
  if (!completes && started.size() > (is_starting ? 1 : 0))
    stage.fail(fmt::format("link {}: the end is told of before what was started", link.number));
  if (link.client_side.reason == Status::kOk) link.client_side.reason = reason;
  stage.check_end(link, false, reason);
  stage.tasks().wake(this);
}

void Client::Peer::complete(const rdma::Completion& completion) {
  if (started.empty() || started.front().cookie != completion.cookie)
    return stage.fail(fmt::format("link {}: {} completes, and {} is the next", link.number, completion.cookie,
                                  started.empty() ? 0 : started.front().cookie));
  const Started what = started.front();
  started.pop_front();
  const bool is_there = completion.status == Status::kOk;
  std::string wrong;
  Region& there = *link.there;
  switch (what.kind) {
    case Started::Kind::kWrite: there.end_write(what.number, is_there); break;
    case Started::Kind::kRead:
      wrong = there.end_read(what.number, what.offset,
                             memory.bytes().subspan(what.slot * kSlotBytes, is_there ? what.length : 0), link.number);
      break;
    case Started::Kind::kAdd:
      if (is_there) wrong = stage.sum.end(what.add, completion.old);
      break;
    case Started::Kind::kSwap:
      if (!is_there) break;
      wrong = stage.swaps.end(what.expected, what.desired, completion.old);
      last_swap = completion.old == what.expected ? what.desired : completion.old;
      break;
  }
  if (!wrong.empty()) stage.fail(fmt::format("link {}: what was started: {}", link.number, wrong));
  if (!is_there && damage_of(completion.status) < Damage::kConnection && completion.status != Status::kTimedOut)
    stage.fail(fmt::format("link {}: what was started completes with {}", link.number, to_string(completion.status)));
}

void Client::Peer::refuse_last() {
  const Started what = started.back();
  started.pop_back();
  switch (what.kind) {
    case Started::Kind::kWrite: return link.there->end_write(what.number, false);
    case Started::Kind::kRead: return (void)link.there->end_read(what.number, what.offset, {});
    case Started::Kind::kAdd: return;
    case Started::Kind::kSwap: return;
  }
}

Client::Client(Stage& stage, unsigned index, std::uint64_t seed) noexcept
    : stage_(stage), index_(index), random_(seed * 1'000'003 + index) {}
Client::~Client() = default;

bool Client::is_over() const noexcept { return stage_.tasks().is_winding_down() || stage_.killed(0) != 0; }

void Client::run() {
  for (unsigned i = 0; i < stage_.shape().steps && !is_leaving_ && !stage_.tasks().is_winding_down(); ++i) {
    if (peers_.size() < stage_.shape().connections && (peers_.empty() || random_.one_in(4))) {
      if (is_over()) break;
      connect();
      continue;
    }
    const auto at = peers_.begin() + static_cast<std::ptrdiff_t>(random_.below(peers_.size()));
    Peer& peer = **at;
    if (peer.is_alive()) {
      step(peer);
      if (peer.is_alive() && !random_.one_in(40)) continue;
    }
    std::unique_ptr<Peer> ended = std::move(*at);
    peers_.erase(at);
    finish(*ended);
    gone_.push_back(std::move(ended));
  }
  state_ = "closing";
  while (!peers_.empty()) {
    finish(*peers_.back());
    gone_.push_back(std::move(peers_.back()));
    peers_.pop_back();
  }
  state_ = "ended";
}

// --- bring-up and end ---------------------------------------------------------------------------------------------

void Client::connect() {
  state_ = "connecting";
  auto peer = std::make_unique<Peer>(stage_, stage_.add_link(index_));
  rdma::Options options = stage_.shape().client;
  peer->has_thread = random_.one_in(2);
  if (peer->has_thread) {
    options.handler = peer.get();
    if (random_.one_in(2)) options.receive = rdma::Receive::kHandler;
    if (random_.one_in(2)) options.complete = rdma::Complete::kHandler;
    peer->receives = options.receive == rdma::Receive::kQueue;
    peer->completes = options.complete == rdma::Complete::kQueue;
  }
  const Nanoseconds begin = stage_.now();
  const bool is_heard = stage_.listens_since != 0;
  auto connected = rdma::Connection::connect(options);
  const Nanoseconds took = stage_.now() - begin;
  const Status status = connected ? Status::kOk : connected.error().status();
  stage_.tell("link {}: connect took {} us: {}", peer->link.number, took / kUs, to_string(status));
  const auto most = static_cast<Nanoseconds>(std::chrono::nanoseconds(options.connect_timeout).count());
  if (took > most + kConnects + stage_.lost_since(begin))
    stage_.fail(fmt::format("connect took {} us, and returned {}", took / kUs, to_string(status)));
  if (!connected) {
    const bool is_undisturbed = stage_.shape().faults.empty() && is_heard && stage_.listens_since != 0;
    constexpr std::array kMay{Status::kConnectionRefused, Status::kRejected, Status::kClosed,
                              Status::kTimedOut,          Status::kPeerLost, Status::kRetryExceeded};
    if (is_undisturbed || std::ranges::find(kMay, status) == kMay.end())
      stage_.fail(fmt::format("client {} cannot connect: {}", index_, connected.error().text()));
    gone_.push_back(std::move(peer));
    return stage_.sleep(random_.between(10 * kUs, 3 * kMs));
  }
  peer->connection = std::move(*connected);
  if (greet(*peer)) return peers_.push_back(std::move(peer));
  finish(*peer);
  gone_.push_back(std::move(peer));
}

/// Says who it is, and finds what it needs.
bool Client::greet(Peer& peer) {
  Link& link = peer.link;
  rdma::Connection& connection = *peer.connection;
  link.here = std::make_unique<Region>(connection.window());
  if (stage_.shape().is_window_shared) {
    link.there = &stage_.window_slice(index_);
    link.base = static_cast<std::size_t>(link.there->memory().data() - stage_.window().data());
  } else {
    // One process simulates both, so that the address means something here as well.
    auto* const bytes = reinterpret_cast<std::byte*>(connection.peer_window().address);
    link.own_there = std::make_unique<Region>(std::span(bytes, connection.peer_window().length));
    link.there = link.own_there.get();
  }
  const auto name = std::as_bytes(std::span(&link.number, 1));
  const Call first{.name = "the first send"};
  if (!stage_.shape().discards &&
      stage_.call(peer.caller(), first, [&] { return connection.send(name); }) != Status::kOk)
    return false;
  auto memory = connection.allocate(kSlots * kSlotBytes);
  if (memory) peer.memory = std::move(*memory);
  if (!memory && connection.failure() == Status::kOk) stage_.fail(fmt::format("{}", memory.error().text()));
  const Status found = stage_.call(peer.caller(), {.name = "find", .returns = {Status::kNotFound}}, [&] {
    auto board = connection.find("board");
    if (board) peer.board = *board;
    return board ? Status::kOk : board.error().status();
  });
  return found == Status::kOk && memory;
}

void Client::finish(Peer& peer) {
  state_ = "closing";
  Side& side = peer.link.client_side;
  if (!peer.is_alive()) take_rest(peer);
  if (peer.started.empty() && random_.one_in(2)) peer.memory = {};
  const Nanoseconds begin = stage_.now();
  side.leaves = begin;
  stage_.tell("link {}: the client closes", peer.link.number);
  if (random_.one_in(2)) peer.connection->close();
  if (!peer.connection->is_connected()) {
    const Status closed = peer.connection->send(std::as_bytes(std::span("x", 1)), Deadline::now());
    if (closed != peer.connection->failure())
      stage_.fail(fmt::format("after its end a send returns {}", to_string(closed)));
  }
  peer.connection.reset();
  check_withdrawn(peer);
  side.left = stage_.now();
  const Nanoseconds took = side.left - begin;
  stage_.tell("link {}: the client has closed after {} us", peer.link.number, took / kUs);
  if (took > kCloseTime + stage_.lost_since(begin))
    stage_.fail(fmt::format("link {}: to close took {} us", peer.link.number, took / kUs));
  for (const Started& what : std::exchange(peer.started, {}))
    if (what.kind == Started::Kind::kRead) {
      (void)peer.link.there->end_read(what.number, what.offset, {});
    } else if (what.kind == Started::Kind::kWrite) {
      peer.link.there->end_write(what.number, false);
    }
}

/// What is left to take of a connection that is dead.
void Client::take_rest(Peer& peer) {
  const Nanoseconds begin = stage_.now();
  const Status reason = peer.connection->failure();
  if (peer.completes) {
    rdma::Connection& connection = *peer.connection;
    for (std::size_t i = 0; i <= kSlots && !peer.started.empty(); ++i) {
      auto completion = connection.complete();
      if (!completion) break;
      peer.complete(*completion);
    }
    if (!peer.started.empty())
      stage_.fail(fmt::format("link {}: the end leaves {} operations that do not complete", peer.link.number,
                              peer.started.size()));
  }
  std::vector<std::byte> buffer(kMostBytes);
  for (bool goes_on = peer.receives; goes_on;) {
    auto message = peer.connection->receive(buffer);
    goes_on = message.has_value();
    if (message) peer.take(*message);
    if (!message && message.error() != reason)
      stage_.fail(fmt::format("link {}: a last receive returned {} after {}", peer.link.number,
                              to_string(message.error()), to_string(reason)));
  }
  const Nanoseconds took = stage_.now() - begin;
  if (took > kDrain + stage_.lost_since(begin))
    stage_.fail(fmt::format("to take what was left took {} us", took / kUs));
  if (peer.has_thread && !peer.is_told) {
    (void)stage_.tasks().sleep(&peer, stage_.now() + kDrain + kHears);
    if (!peer.is_told) stage_.fail(fmt::format("link {}: nobody was told of the end", peer.link.number));
  }
  if (reason != Status::kClosed) return;
  if (std::string wrong = peer.link.down.missing(); !wrong.empty())
    stage_.fail(fmt::format("link {}: the client: {}", peer.link.number, wrong));
}

// --- calls --------------------------------------------------------------------------------------------------------

std::optional<Deadline> Client::draw_deadline() {
  switch (random_.below(16)) {
    case 0: return Deadline::now();
    case 1: return Deadline::after(std::chrono::nanoseconds(random_.between(100, 20'000)));
    case 2:
    case 3: return Deadline::after(std::chrono::microseconds(random_.between(20, 5000)));
    default: return std::nullopt;
  }
}

std::size_t Client::draw_length() {
  switch (random_.below(16)) {
    case 0:
    case 1: return random_.between(1, 16);
    case 2: return random_.between(200, 260);
    // About as much as one piece of a message takes.
    case 3: return random_.between(16'320, 16'390);
    case 4: return random_.between(40'000, 80'000);
    case 5: return random_.one_in(4) ? random_.between(150'000, 400'000) : 1;
    default: return random_.between(1, 3000);
  }
}

void Client::step(Peer& peer) {
  state_ = "a call";
  switch (random_.below(20)) {
    case 0: return send(peer, {});
    case 1:
    case 2:
    case 3: return ask(peer);
    case 4:
      if (peer.receives) return receive(peer, Deadline::now());
      return look(peer);
    case 5:
    case 6: return write(peer);
    case 7: return read(peer);
    case 8:
    case 9: return write_immediate(peer);
    case 10:
    case 11: return use_board(peer);
    case 12: return use_words(peer);
    case 13:
    case 14: return start_some(peer);
    case 15: return random_.one_in(2) ? find_nothing(peer) : be_wrong(peer);
    case 16: return random_.one_in(4) ? export_memory(peer) : publish(peer);
    case 17: return look(peer);
    case 18: return random_.one_in(3) ? let_it_close(peer) : look(peer);
    default: return share(peer);
  }
}

void Client::send(Peer& peer, Request request) {
  const std::size_t length = draw_length();
  std::optional<std::uint32_t> immediate;
  if (random_.one_in(3)) immediate = static_cast<std::uint32_t>(random_.below(3));
  const std::size_t place = peer.link.up.begin({.immediate = immediate, .length = length, .request = request});
  std::vector<std::byte> bytes(length);
  peer.link.up.fill(place, bytes);
  const auto deadline = draw_deadline();
  const Status status = stage_.call(peer.caller(), {.name = "send", .deadline = deadline}, [&] {
    return immediate ? peer.connection->send_with_immediate(bytes, *immediate, deadline)
                     : peer.connection->send(bytes, deadline);
  });
  if (std::string wrong = peer.link.up.end(place, status); !wrong.empty()) stage_.fail(std::move(wrong));
}

void Client::ask(Peer& peer) {
  Request request{.kind = static_cast<Request::Kind>(random_.between(1, Request::kKinds - 2))};
  if (request.kind == Request::Kind::kNamed && !peer.named) request.kind = Request::Kind::kEcho;
  if (request.kind == Request::Kind::kPhysical && !peer.link.physical) request.kind = Request::Kind::kEcho;
  const bool is_physical = request.kind == Request::Kind::kPhysical;
  const bool is_window = !is_physical && request.kind != Request::Kind::kNamed;
  const std::size_t room = is_physical ? kPhysicalBytes : is_window ? kWindowBytes - kWordBytes : kNamedBytes;
  request.length = random_.between(1, random_.one_in(4) ? room : 3000);
  request.offset = random_.between(0, room - request.length);
  if (is_window) request.offset += kWordBytes;
  if (request.kind == Request::Kind::kRead) peer.link.here->write_here(request.offset, request.length);
  const std::size_t before = peer.link.down.taken();
  send(peer, request);
  if (request.kind == Request::Kind::kNamed && peer.is_alive() && random_.one_in(4)) {
    stage_.sleep(random_.between(1, 30 * kUs));  // The server is about to write there, or does, or has.
    return withdraw(peer);
  }
  if (random_.one_in(4)) return;
  wait_for_answer(peer);
  // It was written before the answer.
  if (peer.link.down.taken() == before || !peer.is_alive()) return;
  Region* const region = request.kind == Request::Kind::kNamed   ? &peer.link.named.back()
                         : request.kind == Request::Kind::kWrite ? peer.link.here.get()
                                                                 : nullptr;
  if (region == nullptr) return;
  const std::string wrong = region->look(request.offset, request.length);
  if (!wrong.empty()) stage_.fail(fmt::format("link {}: after an answer: {}", peer.link.number, wrong));
}

void Client::wait_for_answer(Peer& peer) {
  if (peer.receives) return receive(peer, draw_deadline());
  (void)stage_.tasks().sleep(&peer, stage_.now() + random_.between(1 * kUs, 5 * kMs));
}

void Client::receive(Peer& peer, std::optional<Deadline> deadline) {
  std::vector<std::byte> buffer(random_.one_in(4) ? random_.between(1, 4000) : kMostBytes);
  std::optional<rdma::Message> message;
  const auto attempt = [&] {
    auto received = peer.connection->receive(buffer, deadline);
    if (received) message = *received;
    return received ? Status::kOk : received.error();
  };
  const Call call{.name = "receive", .deadline = deadline, .returns = {Status::kBufferTooSmall}};
  Status status = stage_.call(peer.caller(), call, attempt);
  if (status == Status::kBufferTooSmall) {
    const std::size_t needed = peer.connection->waiting_bytes();
    if (needed <= buffer.size() || !peer.link.down.may_be_next(needed))
      stage_.fail(fmt::format("link {}: a message of {} bytes is said to wait", peer.link.number, needed));
    buffer.resize(needed);
    status = stage_.call(peer.caller(), {.name = "receive", .deadline = deadline}, attempt);
  }
  if (message) peer.take(*message);
}

// --- windows ------------------------------------------------------------------------------------------------------

void Client::write(Peer& peer) {
  Region& region = *peer.link.there;
  const bool is_registered = random_.one_in(2);
  const std::size_t room = region.size() - kWordBytes;
  const std::size_t most = is_registered ? kSlotBytes : random_.one_in(8) ? room : 3000;
  const std::size_t length = random_.between(1, std::min(most, room));
  const std::size_t offset = random_.between(0, room - length) + kWordBytes;
  std::vector<std::byte> own(length);
  if (is_registered && !peer.started.empty()) take_completions(peer, true);
  if (!peer.is_alive()) return;
  const std::uint64_t write = region.begin_write(offset, length, peer.link.number);
  const auto deadline = draw_deadline();
  const bool uses_memory = is_registered && peer.started.empty() && peer.memory;
  const std::span<std::byte> bytes = uses_memory ? peer.memory.bytes().first(length) : std::span(own);
  region.fill(write, bytes);
  const rdma::Remote there = peer.connection->peer_window().at(peer.link.base + offset, length);
  if (uses_memory) peer.link.client_side.gave_up = true;
  const Status status = stage_.call(peer.caller(), {.name = "write", .deadline = deadline}, [&] {
    if (uses_memory) return peer.connection->write(peer.memory.at(0, length), there, deadline);
    return peer.connection->write(bytes, there, deadline);
  });
  if (uses_memory && status != Status::kTimedOut) peer.link.client_side.gave_up = false;
  region.end_write(write, status == Status::kOk);
  if (status == Status::kOk && random_.one_in(2)) send(peer, {.offset = offset, .length = length});
}

void Client::read(Peer& peer) {
  Region& region = *peer.link.there;
  const std::size_t length = random_.between(1, random_.one_in(8) ? region.size() : 3000);
  const std::size_t offset = random_.between(0, region.size() - length);
  if (offset < kWordBytes) return;
  std::vector<std::byte> bytes(length);
  const auto deadline = draw_deadline();
  const std::uint64_t read = region.begin_read();
  const Status status = stage_.call(peer.caller(), {.name = "read", .deadline = deadline},
                                    [&] { return peer.connection->read(bytes, peer.link.base + offset, deadline); });
  if (status != Status::kOk) bytes.clear();
  if (std::string wrong = region.end_read(read, offset, bytes, peer.link.number); !wrong.empty())
    stage_.fail(fmt::format("link {}: the client reads: {}", peer.link.number, wrong));
}

void Client::write_immediate(Peer& peer) {
  Region& region = *peer.link.there;
  const std::size_t length = random_.between(0, 3000);
  const std::size_t offset = random_.between(kWordBytes, region.size() - length);
  const std::uint64_t write = region.begin_write(offset, length, peer.link.number);
  std::vector<std::byte> bytes(length);
  region.fill(write, bytes);
  const auto immediate = static_cast<std::uint32_t>(random_.below(3));
  const std::size_t place = peer.link.up.begin({.kind = rdma::Message::Kind::kWritten,
                                                .immediate = immediate,
                                                .length = length,
                                                .offset = peer.link.base + offset,
                                                .region = &region,
                                                .write = write});
  const auto deadline = draw_deadline();
  const Status status = stage_.call(peer.caller(), {.name = "write_with_immediate", .deadline = deadline}, [&] {
    return peer.connection->write_with_immediate(bytes, immediate, peer.link.base + offset, deadline);
  });
  status == Status::kOk ? region.accept_write(write) : region.end_write(write, false);
  if (std::string wrong = peer.link.up.end(place, status); !wrong.empty()) stage_.fail(std::move(wrong));
}

/// Its own part of the board, or to read that of another client.
void Client::use_board(Peer& peer) {
  const bool is_write = random_.one_in(2);
  const unsigned whose = is_write ? index_ : static_cast<unsigned>(random_.below(stage_.shape().clients));
  Region& region = stage_.slice(whose);
  const std::size_t length = random_.between(1, random_.one_in(4) ? region.size() : 2000);
  const std::size_t offset = random_.between(0, region.size() - length);
  const auto base = static_cast<std::size_t>(region.memory().data() - stage_.board().data());
  const rdma::Remote part = peer.board.at(base + offset, length);
  const auto deadline = draw_deadline();
  std::vector<std::byte> bytes(length);
  if (is_write) {
    const std::uint64_t write = region.begin_write(offset, length, peer.link.number);
    region.fill(write, bytes);
    const Status status = stage_.call(peer.caller(), {.name = "write to the board", .deadline = deadline},
                                      [&] { return peer.connection->write(bytes, part, deadline); });
    return region.end_write(write, status == Status::kOk);
  }
  const std::uint64_t read = region.begin_read();
  const Status status = stage_.call(peer.caller(), {.name = "read of the board", .deadline = deadline},
                                    [&] { return peer.connection->read(bytes, part, deadline); });
  if (status != Status::kOk) bytes.clear();
  if (std::string wrong = region.end_read(read, offset, bytes); !wrong.empty())
    stage_.fail(fmt::format("link {}: on the board of client {}: {}", peer.link.number, whose, wrong));
}

void Client::use_words(Peer& peer) {
  const auto deadline = draw_deadline();
  std::uint64_t old = 0;
  const auto value_of = [&](const auto& result) {
    if (result) old = *result;
    return result ? Status::kOk : result.error();
  };
  std::string wrong;
  if (random_.one_in(2)) {
    const Sum::Add add = stage_.sum.begin(random_.between(1, 50));
    const Status status = stage_.call(peer.caller(), {.name = "fetch_add", .deadline = deadline}, [&] {
      return value_of(peer.connection->fetch_add(peer.board.at(0, 8), add.delta, deadline));
    });
    if (status == Status::kOk) wrong = stage_.sum.end(add, old);
    if (status == Status::kBusy) stage_.sum.refuse(add);
  } else {
    const std::uint64_t expected = peer.last_swap;
    const std::uint64_t desired = stage_.swaps.begin();
    const Status status = stage_.call(peer.caller(), {.name = "compare_swap", .deadline = deadline}, [&] {
      return value_of(peer.connection->compare_swap(peer.board.at(8, 8), expected, desired, deadline));
    });
    if (status == Status::kOk) {
      wrong = stage_.swaps.end(expected, desired, old);
      peer.last_swap = old == expected ? desired : old;
    } else if (status == Status::kBusy) {
      stage_.swaps.refuse(desired);
    }
  }
  if (!wrong.empty()) stage_.fail(fmt::format("link {}: {}", peer.link.number, wrong));
}

// --- without waiting ----------------------------------------------------------------------------------------------

void Client::start_some(Peer& peer) {
  if (!peer.memory) return;
  if (!peer.started.empty()) take_completions(peer, random_.one_in(2));
  Region& region = *peer.link.there;
  while (peer.is_alive() && peer.started.size() < kSlots && !random_.one_in(6)) {
    Started what{.kind = static_cast<Started::Kind>(random_.below(4)), .cookie = ++peer.last_cookie};
    while (std::ranges::find(peer.started, what.slot, &Started::slot) != peer.started.end()) ++what.slot;
    what.length = random_.between(1, kSlotBytes);
    what.offset = random_.between(kWordBytes, region.size() - what.length);
    const rdma::Local here = peer.memory.at(what.slot * kSlotBytes, what.length);
    const rdma::Remote there = peer.connection->peer_window().at(peer.link.base + what.offset, what.length);
    std::function<Status()> start;
    rdma::Connection& connection = *peer.connection;
    switch (what.kind) {
      case Started::Kind::kWrite:
        what.number = region.begin_write(what.offset, what.length, peer.link.number);
        region.fill(what.number, here.bytes());
        start = [&] { return connection.start_write(here, there, what.cookie); };
        break;
      case Started::Kind::kRead:
        what.number = region.begin_read();
        start = [&] { return connection.start_read(here, there, what.cookie); };
        break;
      case Started::Kind::kAdd:
        what.add = stage_.sum.begin(random_.between(1, 50));
        start = [&] { return connection.start_fetch_add(peer.board.at(0, 8), what.add.delta, what.cookie); };
        break;
      case Started::Kind::kSwap:
        what.expected = peer.last_swap;
        what.desired = stage_.swaps.begin();
        start = [&] {
          return connection.start_compare_swap(peer.board.at(8, 8), what.expected, what.desired, what.cookie);
        };
        break;
    }
    // Before the call: its completion may come before it returns.
    peer.started.push_back(what);
    peer.is_starting = true;
    const Status status = stage_.call(peer.caller(), {.name = "start"}, start);
    peer.is_starting = false;
    if (status == Status::kOk) continue;
    if (peer.started.empty() || peer.started.back().cookie != what.cookie) {
      stage_.fail(fmt::format("link {}: what was refused completes", peer.link.number));
      return;
    }
    return peer.refuse_last();
  }
  if (random_.one_in(2)) take_completions(peer, true);
}

void Client::take_completions(Peer& peer, bool waits) {
  if (!peer.completes) {
    if (waits && !peer.started.empty()) (void)stage_.tasks().sleep(&peer, stage_.now() + 100 * kUs);
    return;
  }
  if (!waits) {
    std::array<rdma::Completion, 3> some;
    const std::size_t count = peer.connection->poll(some);
    for (std::size_t i = 0; i < count; ++i) peer.complete(some[i]);
    return;
  }
  for (std::size_t i = 0; i < kSlots && !peer.started.empty(); ++i) {
    const auto deadline = draw_deadline();
    std::optional<rdma::Completion> completion;
    // What was started on a connection that has ended may still be with the NIC.
    const Call call{.name = "complete", .deadline = deadline, .returns = {Status::kTimedOut}};
    (void)stage_.call(peer.caller(), call, [&] {
      auto taken = peer.connection->complete(deadline);
      if (taken) completion = *taken;
      return taken ? Status::kOk : taken.error();
    });
    if (!completion) return;
    peer.complete(*completion);
  }
}

// --- what else there is -------------------------------------------------------------------------------------------

void Client::find_nothing(Peer& peer) {
  const auto deadline = Deadline::after(std::chrono::microseconds(random_.between(1, 2000)));
  const Status status =
      stage_.call(peer.caller(), {.name = "find of nothing", .deadline = deadline, .returns = {Status::kNotFound}},
                  [&] { return peer.connection->find("nothing", deadline).error().status(); });
  if (status == Status::kOk) stage_.fail("a window is found that nobody has published");
}

void Client::publish(Peer& peer) {
  if (peer.named && random_.one_in(4)) return withdraw(peer);
  if (peer.named) {
    auto taken_back = peer.connection->unpublish("mine");
    if (!taken_back && peer.is_alive()) stage_.fail(fmt::format("unpublish: {}", taken_back.error().text()));
    if (taken_back) (void)peer.connection->publish("mine", peer.named);
    return;
  }
  const bool is_own = random_.one_in(2);
  if (is_own) peer.own.assign(kNamedBytes + kLine, std::byte{0});
  auto memory = is_own ? peer.connection->register_memory(inside(peer.own, kLine, kNamedBytes), rdma::Access::kAll)
                       : peer.connection->allocate(kNamedBytes);
  if (!memory) {
    peer.own.clear();
    if (peer.is_alive()) stage_.fail(fmt::format("memory to publish: {}", memory.error().text()));
    return;
  }
  peer.named = std::move(*memory);
  peer.link.named.emplace_back(peer.named.bytes());
  auto published = peer.connection->publish("mine", peer.named);
  if (!published && peer.is_alive()) stage_.fail(fmt::format("publish: {}", published.error().text()));
}

/// From then on the server reaches it by physical addresses.
void Client::export_memory(Peer& peer) {
  if (peer.link.physical) return look(peer);
  peer.around_physical.resize(kPhysicalBytes + 2 * kPage);
  const std::span<std::byte> bytes = inside(peer.around_physical, 2 * kPage, kPhysicalBytes);
  auto memory = peer.connection->register_memory(bytes, rdma::Access::kAll);
  if (!memory) {
    if (peer.is_alive()) stage_.fail(fmt::format("memory to export: {}", memory.error().text()));
    return;
  }
  peer.physical = std::move(*memory);
  std::uint64_t address = 0;
  const Status status = stage_.call(peer.caller(), {.name = "export_physical"}, [&] {
    auto exported = peer.connection->export_physical(peer.physical);
    if (exported) address = *exported;
    return exported ? Status::kOk : exported.error().status();
  });
  if (status != Status::kOk) return peer.physical = {}, void();
  const auto told = peer.connection->physical_address_of(bytes.data());
  if (address != (reinterpret_cast<std::uintptr_t>(bytes.data()) ^ kPage) || !told || *told != address)
    stage_.fail(fmt::format("link {}: the exported memory is said to be at {:#x}", peer.link.number, address));
  peer.link.physical = std::make_unique<Region>(bytes);
}

/// Takes memory back that the server may be writing at the moment.
void Client::withdraw(Peer& peer) {
  peer.link.has_withdrawn = true;
  const auto deadline = draw_deadline();
  const auto ended = peer.named.deregister(deadline);
  stage_.tell("link {}: the client has deregistered what it had published: {}", peer.link.number,
              to_string(ended ? Status::kOk : ended.error().status()));
  if (!ended && peer.is_alive() && ended.error().status() != Status::kTimedOut)
    stage_.fail(fmt::format("deregister: {}", ended.error().text()));
  std::vector<std::byte> own = std::exchange(peer.own, {});
  if (own.empty()) return;
  std::vector<std::byte> before = own;
  peer.withdrawn.push_back({.memory = std::move(own), .before = std::move(before)});
}

void Client::check_withdrawn(const Peer& peer) {
  for (const Withdrawn& memory : peer.withdrawn)
    if (memory.memory != memory.before)
      stage_.fail(fmt::format("link {}: memory was written after it had been deregistered", peer.link.number));
}

/// Mistakes that change nothing.
void Client::be_wrong(Peer& peer) {
  std::array<std::byte, 64> bytes{};
  rdma::Connection& connection = *peer.connection;
  const auto expect = [&](const char* name, Status wanted, const std::function<Status()>& body) {
    const Status status = stage_.call(peer.caller(), {.name = name, .returns = {wanted}}, body);
    if (status == Status::kOk) stage_.fail(fmt::format("{} is accepted", name));
  };
  expect("a send of nothing", Status::kBadArgument, [&] { return connection.send({}); });
  expect("a write past the window", Status::kOutOfRange,
         [&] { return connection.write(bytes, connection.peer_window().length - 63); });
  expect("a read past the board", Status::kBadArgument,
         [&] { return connection.read(bytes, peer.board.at(kBoardBytes - 63, 64)); });
  expect("an atomic of seven bytes", Status::kBadArgument, [&] {
    auto old = connection.fetch_add({.address = peer.board.address + 4, .length = 8, .rkey = peer.board.rkey}, 1);
    return old ? Status::kOk : old.error();
  });
}

/// Whether the end is known as soon as it is there.
void Client::look(Peer& peer) {
  if (random_.one_in(4)) stage_.sleep(random_.between(1 * kUs, random_.one_in(4) ? 2500 * kMs : 2 * kMs));
  const Nanoseconds begin = stage_.now();
  const Side& server = peer.link.server_side;
  const Nanoseconds killed = stage_.killed(0);
  const Nanoseconds gone = server.left != 0 ? server.left : killed;
  const Nanoseconds grace = peer.has_thread ? kHears + stage_.lost_since(gone) : 0;
  const bool has_to_know = gone != 0 && gone + grace < begin && !stage_.was_cut_since(peer.link.began);
  const bool is_connected = peer.connection->is_connected();
  if (has_to_know && is_connected)
    stage_.fail(fmt::format("link {}: is_connected says yes {} us after the server has gone", peer.link.number,
                            (begin - gone) / kUs));
  if (is_connected) return;
  stage_.check_dead(peer.caller(), "is_connected", peer.connection->failure());
  // A goodbye that was not given up has arrived, unless a WRITE to memory that was deregistered had ended the
  // connection before.
  const bool was_written_late = peer.link.has_withdrawn && peer.link.client_side.reason == Status::kRemoteAccess;
  const bool was_told = server.left != 0 && server.left - server.leaves < kLinger && killed == 0 && !was_written_late;
  if (was_told && !stage_.may_lose_goodbye(peer.link, true) && peer.link.client_side.reason != Status::kClosed &&
      !peer.link.client_side.gave_up)
    stage_.fail(fmt::format("link {}: the server has closed in order, and the reason is {}", peer.link.number,
                            to_string(peer.link.client_side.reason)));
}

void Client::let_it_close(Peer& peer) {
  send(peer, {.kind = Request::Kind::kClose});
  stage_.sleep(random_.between(1 * kUs, 1 * kMs));
  look(peer);
}

/// Two tasks call at the same time.
void Client::share(Peer& peer) {
  peer.is_shared = true;
  Thread other([this, &peer] {
    for (int i = 0; i < 4 && peer.is_alive(); ++i) use_words(peer);
  });
  for (int i = 0; i < 4 && peer.is_alive(); ++i) read(peer);
  other.join();
  peer.is_shared = false;
}

}  // namespace verbena::sim::api
