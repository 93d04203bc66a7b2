#include "api_parts.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::sim::api {

using namespace std::chrono_literals;

namespace {

/// What a call may take past its deadline: of the thread that drives the connection; with another one, which is woken.
constexpr Nanoseconds kSlack = 300 * kUs;
constexpr Nanoseconds kSlackOfThread = 5 * kMs;
constexpr link::BringUp kNic;
constexpr auto kAckTimeout = static_cast<Nanoseconds>(link::ack_timeout(kNic.timeout).count());
/// A goodbye gets through behind faults that end so soon after it was said.
constexpr Nanoseconds kSurvives = kAckTimeout - kMs;
/// A NIC has given up after so long at the earliest.
constexpr Nanoseconds kGivesUp = (kNic.retry_count + Nanoseconds{1}) * kAckTimeout;

}  // namespace

Shape shape_of(Random& random) {
  Shape shape;
  shape.clients = static_cast<unsigned>(random.between(2, kMostClients));
  shape.connections = static_cast<unsigned>(random.between(1, 3));
  shape.steps = 400 / shape.clients;
  shape.restarts = static_cast<unsigned>(random.one_in(2) ? 0 : random.between(1, 3));
  shape.has_handler = random.one_in(2);
  shape.has_node = random.one_in(4);
  shape.is_window_shared = random.one_in(2);
  const auto timeout = std::chrono::milliseconds(random.between(5, 100));
  const auto inbox = static_cast<std::size_t>(65'536) << (random.one_in(2) ? 0 : 4);
  for (rdma::Options* options : {&shape.server, &shape.client}) {
    options->transport.device = "soft";
    options->port = kPort;
    options->window_bytes = kWindowBytes;
    options->inbox_bytes = inbox;
    options->timeout = timeout;
    options->connect_timeout = std::chrono::milliseconds(random.between(20, 200));
  }
  shape.faults = draw_faults(random, shape.clients);
  for (Fault& fault : shape.faults)
    if (is_cut(fault.kind) && random.one_in(8)) fault.time = random.between(500 * kMs, 3000 * kMs);
  shape.discards = random.one_in(12);
  // Callbacks tell of connections, and their windows of who is there: nobody introduces himself by a message.
  if (shape.discards) shape.has_handler = true;
  if (shape.discards) shape.is_window_shared = false;
  return shape;
}

Stage::Stage(Tasks& tasks, Shape shape, std::function<void(std::string)> fail)
    : tasks_(tasks), shape_(std::move(shape)), fail_(std::move(fail)), memory_(kBoardBytes + kWindowBytes + kPage) {
  void* first = memory_.data();
  std::size_t room = memory_.size();
  first = std::align(kPage, kBoardBytes + kWindowBytes, first, room);
  board_ = {static_cast<std::byte*>(first), kBoardBytes};
  window_ = {static_cast<std::byte*>(first) + kBoardBytes, kWindowBytes};
  for (unsigned i = 0; i < kMostClients; ++i) {
    slices_.emplace_back(board_.subspan(kPage + i * kSliceBytes, kSliceBytes));
    window_slices_.emplace_back(window_.subspan(kPage + i * kSliceBytes, kSliceBytes));
  }
}

void Stage::fail(std::string why) {
  if (tasks_.is_winding_down()) return;
  tell("WRONG: {}", why);
  fail_(std::move(why));
}

Link& Stage::add_link(unsigned client) {
  Link& link = links_.emplace_back(links_.size() + 1, client);
  link.began = now();
  return link;
}

Link* Stage::find_link(std::uint64_t number) noexcept {
  return number == 0 || number > links_.size() ? nullptr : &links_[number - 1];
}

Link* Stage::find_link(std::span<const std::byte> window) noexcept {
  for (auto link = links_.rbegin(); link != links_.rend(); ++link)
    if (link->own_there && link->own_there->memory().data() == window.data()) return &*link;
  return nullptr;
}

void Stage::check_words() {
  std::uint64_t words[2];
  std::memcpy(words, board_.data(), sizeof words);
  if (std::string wrong = sum.check(words[0]); !wrong.empty()) fail(std::move(wrong));
  if (std::string wrong = swaps.check(words[1]); !wrong.empty()) fail(std::move(wrong));
}

bool Stage::was_cut_since(Nanoseconds begin) const {
  return std::ranges::any_of(shape_.faults, [&](const Fault& fault) {
    const Nanoseconds at = faults_begin_ + fault.at;
    return is_cut(fault.kind) && at <= now() && at + fault.time >= begin;
  });
}

void Stage::check_call(const Caller& caller, const Call& call, Nanoseconds begin, Status status) {
  ++calls;
  const Nanoseconds timeout = static_cast<Nanoseconds>(std::chrono::nanoseconds(shape_.client.timeout).count());
  const Nanoseconds due = call.deadline ? std::max<Nanoseconds>(call.deadline->ticks(), begin) : begin + timeout;
  const Nanoseconds slack = (caller.has_thread ? kSlackOfThread : kSlack) + lost_since(begin);
  const char* const who = caller.is_server ? "the server's" : "the client's";
  tell("link {}: {} {} took {} us: {}", caller.link.number, who, call.name, (now() - begin) / kUs, to_string(status));
  if (now() > due + slack)
    fail(fmt::format("link {}: {} {} took {} us, {} us past its deadline, and returned {}", caller.link.number, who,
                     call.name, (now() - begin) / kUs, (now() - due) / kUs, to_string(status)));
  if (status == Status::kOk || std::ranges::find(call.returns, status) != call.returns.end()) return;
  // The end may come in the moment of the deadline.
  if (status == Status::kTimedOut && caller.has_thread && now() >= due) return;
  const Status reason = caller.connection.failure();
  if (reason != Status::kOk || damage_of(status) >= Damage::kConnection) return check_dead(caller, call.name, status);
  if (status == Status::kTimedOut) {
    if (now() < due) fail(fmt::format("link {}: {} {} timed out too early", caller.link.number, who, call.name));
    return;
  }
  if (status == Status::kBusy && caller.is_shared) return;
  fail(fmt::format("link {}: {} {} returned {}", caller.link.number, who, call.name, to_string(status)));
}

void Stage::check_dead(const Caller& caller, const char* name, Status status) {
  const Nanoseconds begin = now();
  const bool is_connected = caller.connection.is_connected();
  const Status reason = caller.connection.failure();
  Side& side = caller.is_server ? caller.link.server_side : caller.link.client_side;
  if (side.reason == Status::kOk) side.reason = reason;
  if (is_connected || reason != status || side.reason != reason)
    fail(fmt::format("link {}: {} returned {}, is_connected {}, failure {}, and before {}", caller.link.number, name,
                     to_string(status), is_connected, to_string(reason), to_string(side.reason)));
  check_end(caller.link, caller.is_server, reason);
  std::byte byte{1};
  const Status next = caller.connection.write({&byte, 1}, 0);
  const Nanoseconds took = now() - begin;
  if (next != reason || took > kSlack + lost_since(begin))
    fail(fmt::format("link {}: after {} from {}, a write took {} us and returned {}", caller.link.number,
                     to_string(reason), name, took / kUs, to_string(next)));
}

/// The NIC repeats a goodbye that was lost. A fault that lasts longer keeps that away, too; and one that outlasts the
/// retries ends the connection without any goodbye.
bool Stage::may_lose_goodbye(const Link& link, bool is_of_server) const {
  Nanoseconds said = is_of_server ? link.server_side.leaves : link.client_side.leaves;
  const auto stop = std::ranges::lower_bound(stops, link.began);
  if (is_of_server && stop != stops.end()) said = said == 0 ? *stop : std::min(said, *stop);
  return std::ranges::any_of(shape_.faults, [&](const Fault& fault) {
    if (!is_cut(fault.kind) && fault.kind != Fault::Kind::kLosses) return false;
    return fault.time >= kGivesUp || (said != 0 && faults_begin_ + fault.at + fault.time > said + kSurvives);
  });
}

bool Stage::may_end_as(const Link& link, bool is_server, Status reason) const {
  const Side& own = is_server ? link.server_side : link.client_side;
  const Side& other = is_server ? link.client_side : link.server_side;
  const bool is_stopped = last_stop() >= link.began;  // By the listener.
  if (reason == Status::kTimedOut) return own.gave_up;
  if (reason == Status::kClosed) return own.leaves != 0 || other.leaves != 0 || is_stopped;
  const bool is_killed = killed(is_server ? link.client + 1 : 0) != 0;
  const bool has_failed = other.reason != Status::kOk && other.reason != Status::kClosed;
  const bool is_lost =
      is_killed || has_failed || other.gave_up || link.has_withdrawn || may_lose_goodbye(link, !is_server);
  switch (reason) {
    case Status::kPeerLost:
    case Status::kRemoteAccess:
    case Status::kRetryExceeded: return is_lost;
    default: return false;
  }
}

void Stage::check_end(const Link& link, bool is_server, Status reason) {
  if (!may_end_as(link, is_server, reason))
    fail(fmt::format("link {}: {} is told of {}, and there is no cause for that", link.number,
                     is_server ? "the server" : "the client", to_string(reason)));
}

}  // namespace verbena::sim::api
