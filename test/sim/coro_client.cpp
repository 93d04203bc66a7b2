// A client of the scenario `coroutines`. Each round begins some coroutines that await operations, at most one each,
// lets them have some turns, and drops, cancels or awaits them. Memory that they had is filled then, and must stay so.
#include "coro_parts.hpp"

#include "base/threads.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::sim::coro {

using namespace std::chrono_literals;
using coroutine::Loop;
using coroutine::Task;

namespace {

constexpr std::uint64_t kCanary = 0xC5C5'C5C5'C5C5'C5C5;
constexpr std::array<std::size_t, 4> kSmall{16, 64, 1000, 4088};
constexpr std::array<std::size_t, 3> kLarge{4096, 9000, kRoomBytes};

/// More than faults can take from anybody.
Deadline patience() { return Deadline::after(30s); }

std::string key_name(unsigned key) { return "key " + std::to_string(key); }
kv::Key key_of(const std::string& name) { return std::as_bytes(std::span(name)); }

/// Repeats a word.
void fill(std::span<std::byte> bytes, std::uint64_t word) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof word)
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i));
}
/// The word that bytes repeat; nothing: they do not.
std::optional<std::uint64_t> word_of(std::span<const std::byte> bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  for (std::size_t i = 0; i < bytes.size(); i += sizeof word)
    if (std::memcmp(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i)) != 0) return std::nullopt;
  return word;
}
std::optional<std::uint64_t> word_of(const typed::Segment<std::uint64_t>& segment) {
  return segment.use([](std::span<const std::uint64_t> all) -> std::optional<std::uint64_t> {
    const bool is_one = std::ranges::all_of(all, [&](std::uint64_t each) { return each == all.front(); });
    return is_one ? std::optional(all.front()) : std::nullopt;
  });
}

}  // namespace

/// Drives the link by a thread of the library.
class Client::Driven final : public rdma::Handler {};

/// What one coroutine of a round works with.
struct Hand {
  Stage& stage;
  Random& random;
  kv::Client& store;
  const std::optional<kv::Cell>& cell;
  typed::Link& link;
  typed::MemoryRegion<std::uint64_t>& region;
  Echoes& echoes;
  std::size_t index = 0;
  std::uint64_t name = 0;             ///< In the values that it puts.
  std::span<std::byte> registered{};  ///< For gets.
  std::span<std::byte> source{};      ///< For large puts.
  std::vector<std::byte> plain{};     ///< For gets.
  bool is_source_lent = false;        ///< To a put that was given up.
  std::uint64_t last_echo = 0;
  Count written{};  ///< To its place in the window of the peer.
  std::uint64_t values = 0;
  std::array<std::uint64_t, kKeys> seen{};  ///< Versions.

  [[nodiscard]] std::optional<Deadline> draw_deadline() {
    if (random.one_in(2)) return std::nullopt;
    return Deadline::after(std::chrono::nanoseconds(random.between(0, random.one_in(2) ? 30 * kUs : 3 * kMs)));
  }
  /// Nothing: the NIC has it still.
  [[nodiscard]] std::optional<typed::Segment<std::uint64_t>> take() {
    auto taken = region.take(index * kWords, kWords);
    return taken ? std::optional(std::move(*taken)) : std::nullopt;
  }
  [[nodiscard]] typed::RemoteSegment<std::uint64_t> there() const {
    return typed::RemoteSegment<std::uint64_t>::of(link.peer_window(), (index + 1) * kWords, kWords)
        .value_or(typed::RemoteSegment<std::uint64_t>());
  }
  void check(const char* what, Status status) {
    ++stage.calls;
    const bool is_usual = status == Status::kOk || status == Status::kNotFound || status == Status::kVersionMismatch ||
                          status == Status::kTimedOut || status == Status::kCancelled || status == Status::kStoreFull;
    if (is_usual) return;
    if (stage.is_calm() || damage_of(status) < Damage::kConnection)
      stage.fail(fmt::format("{} returned {}: {}", what, to_string(status), error_detail()));
  }
  void see(unsigned key, std::uint64_t version) {
    if (version < seen[key]) stage.fail(fmt::format("key {}: version {} after {}", key, version, seen[key]));
    seen[key] = version;
  }
};

namespace {

// --- the store ----------------------------------------------------------------------------------------------------

Task<Status> get_value(Loop& /*loop*/, Hand& hand) {
  const auto key = static_cast<unsigned>(hand.random.below(kKeys));
  const std::string name = key_name(key);
  const std::span<std::byte> out = hand.random.one_in(2) ? hand.registered : std::span(hand.plain);
  const kv::Outcome got = co_await coroutine::get(hand.store, key_of(name), out, hand.draw_deadline());
  hand.check("get", got.status);
  if (got.status != Status::kOk) co_return got.status;
  hand.see(key, got.version);
  const std::optional<std::uint64_t> word = word_of(out.first(got.length));
  if (!word || *word % kKeys != key) hand.stage.fail(fmt::format("get: the value of key {} is torn or another's", key));
  co_return got.status;
}

Task<Status> put_value(Loop& /*loop*/, Hand& hand) {
  const auto key = static_cast<unsigned>(hand.random.below(kKeys));
  const std::string name = key_name(key);
  const bool is_large = !hand.is_source_lent && hand.random.one_in(3);
  std::array<std::byte, kSmall.back()> small;
  const std::span<std::byte> value = is_large ? hand.source.first(kLarge[hand.random.below(kLarge.size())])
                                              : std::span(small).first(kSmall[hand.random.below(kSmall.size())]);
  fill(value, (hand.name << 32 | ++hand.values) * kKeys + key);
  hand.is_source_lent = hand.is_source_lent || is_large;
  kv::Outcome put;
  if (hand.random.one_in(3)) {
    put = co_await coroutine::cas(hand.store, key_of(name), hand.seen[key], value, hand.draw_deadline());
  } else {
    put = co_await coroutine::put(hand.store, key_of(name), value, hand.draw_deadline());
  }
  hand.check("put", put.status);
  if (put.status == Status::kOk) hand.see(key, put.version);
  if (is_large && put.status != Status::kTimedOut && put.status != Status::kCancelled) hand.is_source_lent = false;
  co_return put.status;
}

Task<Status> erase_value(Loop& /*loop*/, Hand& hand) {
  const std::string name = key_name(static_cast<unsigned>(hand.random.below(kKeys)));
  const kv::Outcome erased = co_await coroutine::erase(hand.store, key_of(name), hand.draw_deadline());
  hand.check("erase", erased.status);
  co_return erased.status;
}

Task<Status> use_cell(Loop& /*loop*/, Hand& hand) {
  if (!hand.cell) co_return Status::kOk;
  const kv::Cell cell = *hand.cell;
  Count& sum = hand.stage.sum;
  const std::uint64_t sure = sum.sure;
  std::expected<std::uint64_t, Status> old;
  if (hand.random.one_in(2)) {
    old = co_await coroutine::read(hand.store, cell, hand.draw_deadline());
  } else {
    ++sum.begun;
    old = co_await coroutine::fetch_add(hand.store, cell, 1, hand.draw_deadline());
    if (old) ++sum.sure;
  }
  hand.check("an operation on the cell", old ? Status::kOk : old.error());
  if (!old) co_return old.error();
  if (*old < sure || *old > sum.begun)
    hand.stage.fail(fmt::format("the cell has {}, which must be {} to {}", *old, sure, sum.begun));
  co_return Status::kOk;
}

// --- the link -----------------------------------------------------------------------------------------------------

Task<Status> write_words(Loop& /*loop*/, Hand& hand) {
  auto mine = hand.take();
  if (!mine) co_return Status::kOk;
  const std::uint64_t number = ++hand.written.begun;
  mine->fill(number);
  const auto done = co_await coroutine::write(hand.link, std::move(*mine), hand.there(), hand.draw_deadline());
  hand.check("write", done.status);
  if (done.status == Status::kOk) hand.written.sure = number;
  co_return done.status;
}

Task<Status> read_words(Loop& /*loop*/, Hand& hand) {
  auto mine = hand.take();
  if (!mine) co_return Status::kOk;
  const auto done = co_await coroutine::read(hand.link, std::move(*mine), hand.there(), hand.draw_deadline());
  hand.check("read", done.status);
  if (done.status != Status::kOk) co_return done.status;
  const std::optional<std::uint64_t> number = word_of(done.segment);
  if (!number || *number < hand.written.sure || *number > hand.written.begun)
    hand.stage.fail(fmt::format("read: not what was written {} to {}", hand.written.sure, hand.written.begun));
  co_return Status::kOk;
}

Task<Status> add_to_word(Loop& /*loop*/, Hand& hand) {
  // The front of the window is nobody's.
  const auto front = typed::RemoteSegment<std::uint64_t>::of(hand.link.peer_window(), hand.index, 1);
  if (!front) co_return Status::kOk;
  const auto old = co_await coroutine::fetch_add(hand.link, *front, 1, hand.draw_deadline());
  hand.check("fetch_add", old ? Status::kOk : old.error());
  co_return old ? Status::kOk : old.error();
}

Task<Status> send_words(Loop& /*loop*/, Hand& hand) {
  auto mine = hand.take();
  if (!mine) co_return Status::kOk;
  mine->fill(++hand.echoes.begun);
  const auto done = co_await coroutine::send(hand.link, std::move(*mine), hand.draw_deadline());
  hand.check("send", done.status);
  co_return done.status;
}

/// Each comes back whole, and once; to one receiver, in their order.
void take_message(Stage& stage, Echoes& echoes, std::uint64_t& last, const typed::Segment<std::uint64_t>& segment,
                  std::size_t count) {
  const std::optional<std::uint64_t> number = count == kWords ? word_of(segment) : std::nullopt;
  if (!number || *number == 0 || *number > echoes.begun) return stage.fail("receive: a message that nobody has sent");
  echoes.are_back.resize(echoes.begun + 1);
  if (*number <= last || echoes.are_back[*number])
    return stage.fail(fmt::format("receive: message {} comes again, or behind a later one", *number));
  echoes.are_back[*number] = true;
  last = *number;
}

Task<Status> receive_words(Loop& /*loop*/, Hand& hand) {
  auto mine = hand.take();
  if (!mine) co_return Status::kOk;
  const auto until = Deadline::after(std::chrono::nanoseconds(hand.random.between(0, 200 * kUs)));
  const auto done = co_await coroutine::receive(hand.link, std::move(*mine), until);
  hand.check("receive", done.status);
  if (done.status == Status::kOk)
    take_message(hand.stage, hand.echoes, hand.last_echo, done.segment, done.received.count);
  co_return done.status;
}

// --- coroutines of them -------------------------------------------------------------------------------------------

Task<Status> operation(Loop& loop, Hand& hand) {
  switch (hand.random.below(12)) {
    case 0:
    case 1:
    case 2: return get_value(loop, hand);
    case 3:
    case 4: return put_value(loop, hand);
    case 5: return erase_value(loop, hand);
    case 6: return use_cell(loop, hand);
    case 7: return write_words(loop, hand);
    case 8: return read_words(loop, hand);
    case 9: return add_to_word(loop, hand);
    case 10: return send_words(loop, hand);
    default: return receive_words(loop, hand);
  }
}

Task<Status> nap(Loop& /*loop*/, Nanoseconds time) {
  co_return co_await coroutine::reached(Deadline::after(std::chrono::nanoseconds(time)));
}

/// Some operations, one after the other; some of them race with a time.
Task<Status> work(Loop& loop, Hand& hand) {
  for (std::uint64_t left = hand.random.between(1, 8); left != 0; --left) {
    const Nanoseconds time = hand.random.between(0, 100 * kUs);
    Status status = Status::kOk;
    if (hand.random.one_in(4)) {
      status = co_await coroutine::within(Deadline::after(std::chrono::nanoseconds(time)), operation(loop, hand));
    } else if (hand.random.one_in(4)) {
      status = (co_await coroutine::when_any(operation(loop, hand), nap(loop, time))).result;
    } else {
      status = co_await operation(loop, hand);
    }
    if (damage_of(status) >= Damage::kConnection) co_return status;
  }
  co_return Status::kOk;
}

Task<Status> guarded(Loop& /*loop*/, coroutine::CancelSource& source, Task<Status> task) {
  co_return co_await coroutine::cancellable(source, std::move(task));
}

}  // namespace

// --- the client ---------------------------------------------------------------------------------------------------

Client::Client(Stage& stage, unsigned index, std::uint64_t seed) noexcept
    : stage_(stage), index_(index), random_(seed * 1'000'003 + index) {}
Client::~Client() = default;

bool Client::is_over() const noexcept {
  return is_leaving_ || stage_.is_server_gone || stage_.tasks().is_winding_down();
}

void Client::run() {
  for (unsigned i = 0; i < stage_.shape().rounds && !is_over(); ++i) {
    if (!is_whole() && !connect()) continue;
    round();
  }
  state_ = "closing";
  disconnect();
  state_ = "ended";
}

bool Client::is_whole() const noexcept {
  return store_ != nullptr && store_->connection_error().status() == Status::kOk && link_.is_connected();
}

bool Client::connect() {
  state_ = "connecting";
  disconnect();
  if (connect_store() && connect_link()) return true;
  disconnect();
  (void)stage_.tasks().sleep(this, stage_.tasks().now() + kMs);
  return false;
}

bool Client::connect_store() {
  kv::ClientOptions options = stage_.shape().store_client;
  options.lookup = static_cast<kv::Lookup>(random_.below(3));
  options.depth = static_cast<unsigned>(random_.between(1, options.depth));
  options.buffer_bytes = 2 * kHands * (kRoomBytes + 64);
  auto connected = kv::Client::connect(options);
  if (!connected) {
    if (stage_.is_calm()) stage_.fail(fmt::format("no client of the store: {}", connected.error().text()));
    return false;
  }
  store_ = std::move(*connected);
  cell_.reset();
  const std::string name = "cell";
  if (const auto opened = store_->open_cell(key_of(name), 0); opened) cell_ = *opened;
  return true;
}

bool Client::connect_link() {
  auto loop = Loop::make({.frames = {.frames = 8 * kHands, .frame_bytes = 8192}, .spin = 2us});
  auto node = rdma::Node::open({.transport = stage_.shape().link.transport, .connections = 4});
  if (!loop || !node) {
    stage_.fail("no loop, or no node");
    return false;
  }
  loop_ = std::move(*loop);
  node_ = std::move(*node);
  auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*node_, (kHands + 1) * kWords);
  if (!allocated) {
    stage_.fail(fmt::format("no memory: {}", allocated.error().text()));
    return false;
  }
  region_ = std::move(*allocated);
  rdma::Options options = stage_.shape().link;
  options.node = node_.get();
  handler_ = random_.one_in(2) ? std::make_unique<Driven>() : nullptr;
  options.handler = handler_.get();
  auto connected = rdma::Connection::connect(options);
  if (!connected) {
    if (stage_.is_calm()) stage_.fail(fmt::format("no connection: {}", connected.error().text()));
    return false;
  }
  auto link = typed::Link::over(std::move(*connected));
  if (!link) {
    stage_.fail(fmt::format("no link: {}", link.error().text()));
    return false;
  }
  link_ = std::move(*link);
  echoes_ = {};
  last_echo_ = 0;
  hands_.clear();
  for (std::size_t i = 0; i < kHands; ++i)
    hands_.push_back({.stage = stage_,
                      .random = random_,
                      .store = *store_,
                      .cell = cell_,
                      .link = link_,
                      .region = region_,
                      .echoes = echoes_,
                      .index = i,
                      .name = (index_ + 1) * 100 + i,
                      .registered = store_->allocate(kRoomBytes),
                      .source = store_->allocate(kRoomBytes),
                      .plain = std::vector<std::byte>(kRoomBytes)});
  return true;
}

void Client::disconnect() {
  link_ = {};
  hands_.clear();
  store_.reset();
  if (region_.held() != 0)
    stage_.fail(fmt::format("{} segments are left behind the end of their link", region_.held()));
  region_ = {};
  node_.reset();
  loop_.reset();
  handler_.reset();
}

// --- a round ------------------------------------------------------------------------------------------------------

void Client::round() {
  state_ = "awaiting";
  coroutine::CancelSource source;
  begin(source);
  const std::uint64_t turns = random_.one_in(2) ? random_.below(20) : random_.below(400);
  for (std::uint64_t i = 0; i < turns && loop_->spawned() != 0; ++i) {
    (void)loop_->poll();
    yield_thread();
  }
  give_up(source);
  state_ = "settling";
  check_nothing_waits();
  check_memory();
}

void Client::begin(coroutine::CancelSource& source) {
  const std::uint64_t count = random_.between(1, kHands);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Status spawned = loop_->spawn(guarded(*loop_, source, work(*loop_, hands_[i])));
    if (spawned != Status::kOk) stage_.fail(fmt::format("a task is not begun: {}", to_string(spawned)));
  }
}

void Client::give_up(coroutine::CancelSource& source) {
  const std::uint64_t how = random_.below(3);
  if (how == 0) {
    loop_->drop_all();
    return;
  }
  if (how == 1) source.cancel();
  const auto are_over = [this] { return loop_->spawned() == 0 || stage_.tasks().is_winding_down(); };
  if (loop_->run_until(are_over, patience()) != Status::kOk)
    stage_.fail(fmt::format("{} coroutines do not end", loop_->spawned()));
  loop_->drop_all();
}

void Client::check_nothing_waits() {
  const auto frames = loop_->frames().counts().in_use;
  if (loop_->waiting() != 0 || frames != 0)
    stage_.fail(fmt::format("behind all tasks {} wait, and {} frames are in use", loop_->waiting(), frames));
}

/// All memory that the round used, but what quarantine and the client have, is this one's again: nobody writes to it.
void Client::check_memory() {
  std::vector<Words> segments;
  for (Hand& hand : hands_) {
    fill(hand.registered, kCanary);
    fill(hand.plain, kCanary);
    if (auto taken = hand.take()) {
      taken->fill(kCanary);
      segments.push_back(std::move(*taken));
    }
  }
  settle();
  for (const Hand& hand : hands_)
    if (word_of(hand.registered) != kCanary || word_of(std::span<const std::byte>(hand.plain)) != kCanary)
      stage_.fail("a get wrote to memory of who had given it up");
  for (const Words& segment : segments)
    if (word_of(segment) != kCanary) stage_.fail("something was received into memory of who had given it up");
}

/// What was given up comes to its end.
void Client::settle() {
  const bool is_store_settled = store_->settle(patience()) == Status::kOk;
  const Status link_settled = link_.settle(patience());
  take_echoes();
  if (stage_.tasks().is_winding_down()) return;
  if (!is_store_settled) stage_.fail("the store's client does not come to the end of what was given up");
  if (link_settled == Status::kTimedOut) stage_.fail("the link does not come to the end of what was given up");
  for (Hand& hand : hands_) hand.is_source_lent = false;
  if (stage_.is_calm() && !is_whole())
    stage_.fail(fmt::format("a connection ended for no reason: {}; {}", store_->connection_error().text(),
                            link_.is_connected() ? "not the link's" : "the link's"));
  // All places are there again: as many as that are in flight at a time.
  std::array<std::byte, kSmall.back()> out;
  const std::string name = key_name(0);
  for (unsigned i = 0; i < 4 && is_whole(); ++i) (void)store_->get(key_of(name), out, patience());
}

void Client::take_echoes() {
  auto taken = region_.take(kHands * kWords, kWords);
  if (!taken) return stage_.fail("memory that nobody has used is taken");
  const Deadline until = Deadline::after(std::chrono::nanoseconds(random_.between(0, kMs)));
  while (const auto received = link_.receive(*taken, until))
    take_message(stage_, echoes_, last_echo_, *taken, received->count);
}

}  // namespace verbena::sim::coro
