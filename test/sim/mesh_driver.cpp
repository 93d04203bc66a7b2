#include "mesh_parts.hpp"

#include "link/link.hpp"

#include <algorithm>
#include <chrono>

namespace verbena::sim::meshes {

namespace {

constexpr Nanoseconds kSlack = 300 * kUs;
constexpr link::BringUp kNic;
/// A NIC has given up after so long at the earliest.
constexpr Nanoseconds kGivesUp =
    (kNic.retry_count + Nanoseconds{1}) * static_cast<Nanoseconds>(link::ack_timeout(kNic.timeout).count());
constexpr const char* kWindow = "all";

[[nodiscard]] Deadline deadline_at(Nanoseconds time) noexcept { return Deadline::at_ticks(time); }

}  // namespace

Driver::Driver(Stage& stage, Life& life, mesh::Lane& lane, std::uint64_t seed)
    : stage_(stage),
      life_(life),
      lane_(lane),
      random_(seed * 1000 + life.number * 10 + lane.thread()),
      writer_(stage.next_writer()),
      keeps_all_(random_.one_in(6)),
      steps_(stage.shape().steps),
      links_(stage.processes()) {}

void Driver::fail(std::string why) {
  stage_.fail(fmt::format("life {} (process {}), lane {}: {}", life_.number, life_.id, lane_.thread(), why));
}

// --- steps --------------------------------------------------------------------------------------------------------

void Driver::turn() {
  if (lane_.thread() == 0 && life_.rounds != stage_.round) return gather();
  if (stage_.is_quiet || steps_ == 0) return settle();
  --steps_;
  state_ = "a call";
  step();
}

void Driver::step() {
  const auto others = static_cast<unsigned>(random_.below(stage_.processes() - 1));
  const unsigned peer = others < life_.id ? others : others + 1;
  ++stage_.calls;
  switch (random_.below(18)) {
    case 0:
    case 1:
    case 2: return send(peer);
    case 3:
    case 4: return send_in_place(peer);
    case 5:
    case 6: return write(peer);
    case 7:
    case 8: return write_with_immediate(peer);
    case 9: return read(peer);
    case 10: return add(peer);
    case 11: return swap(peer);
    case 12: return keeps_all_ ? drain() : release_one();
    case 13: return random_.one_in(2) ? lane_.flush() : lane_.flush(peer);
    case 14: return drain();
    case 15: return burst(peer);
    case 16: return use_what_is_over(peer);
    default: return wait();
  }
}

/// Nothing is begun any more: what is under way ends. Messages are kept while their senders may still come back.
void Driver::settle() {
  state_ = "idle";
  drain();
  while (stage_.is_quiet && !kept_.empty()) release_one();
  std::array<mesh::Completion, 4> some;
  const Nanoseconds begin = stage_.now();
  is_current_ = false;
  const std::size_t count = lane_.wait(some, deadline_at(begin + 500 * kUs));
  for (const mesh::Completion& completion : std::span(some).first(count)) on_completion(completion);
  drain();
}

bool Driver::is_settled() const {
  if (!stage_.is_quiet || !operations_.empty() || !kept_.empty()) return false;
  // Where an operation has failed the end of its connection is told once all others have ended.
  if (std::ranges::any_of(links_, [](const Link& link) { return link.is_here && link.has_failed; })) return false;
  for (unsigned peer = 0; peer < links_.size(); ++peer)
    if (peer != life_.id && stage_.lives(peer) && (!links_[peer].is_here || !lane_.is_here(peer))) return false;
  return true;
}

std::string Driver::unsettled() const {
  std::string text = fmt::format("life {} (process {}), lane {}: {} operations, {} messages kept", life_.number,
                                 life_.id, lane_.thread(), operations_.size(), kept_.size());
  for (unsigned peer = 0; peer < links_.size(); ++peer)
    if (peer != life_.id && !(links_[peer].is_here && lane_.is_here(peer))) text += fmt::format(", without {}", peer);
  return text;
}

std::string Driver::missing(unsigned peer) const {
  const Link& link = links_[peer];
  for (const std::uint64_t number : stage_.accepted(life_.number, lane_.thread(), peer)) {
    const Post& post = *stage_.find_post(number);
    if (link.is_here && post.epoch == link.epoch && !post.is_taken)
      return fmt::format("post {} of life {} to process {} on lane {} has not arrived", number, life_.number, peer,
                         lane_.thread());
  }
  return {};
}

/// Until there is no credit, and writes go without their words.
void Driver::burst(unsigned peer) {
  for (std::uint64_t left = random_.between(4, kNoticeSlots); left != 0 && lane_.is_here(peer); --left)
    random_.one_in(3) ? send(peer) : write_with_immediate(peer);
}

void Driver::use_what_is_over(unsigned peer) {
  for (const mesh::Completion& message : over_)
    if (lane_.release(message) != Status::kBadArgument) fail("a message could be released twice, later");
  const Link& link = links_[peer];
  drain();
  if (!link.window || !link.is_here || !link.old_window || link.old_window->incarnation == link.window->incarnation)
    return;
  const std::array<std::byte, 8> bytes{};
  if (const Status status = lane_.write(*link.old_window, kConstantsAt, bytes, cookie_); status != Status::kPeerLost)
    fail(fmt::format("a write to the window of an earlier life of process {} returned {}", peer, to_string(status)));
}

// --- messages -----------------------------------------------------------------------------------------------------

std::optional<std::uint32_t> Driver::draw_immediate() {
  if (random_.one_in(2)) return {};
  return random_.one_in(4) ? 0U : static_cast<std::uint32_t>(random_.next());
}

std::uint64_t Driver::begin_post(unsigned peer, std::size_t length, std::optional<std::uint32_t> immediate,
                                 bool is_write) {
  return stage_.begin_post({.life = life_.number,
                            .lane = lane_.thread(),
                            .to = peer,
                            .epoch = is_current_ && links_[peer].is_here ? links_[peer].epoch : 0,
                            .length = length,
                            .immediate = immediate,
                            .is_write = is_write});
}

namespace {

void write_post(std::span<std::byte> bytes, std::uint64_t number) {
  std::memcpy(bytes.data(), &number, kHeadBytes);
  fill(bytes.subspan(kHeadBytes), number);
}

}  // namespace

void Driver::send(unsigned peer) {
  const std::size_t most = stage_.shape().options.message_bytes;
  const bool is_too_long = random_.one_in(50);
  const std::size_t length = is_too_long ? most + 1 : random_.between(kHeadBytes, most);
  const auto immediate = draw_immediate();
  const std::uint64_t number = begin_post(peer, length, immediate, false);
  std::vector<std::byte> bytes(length);
  write_post(bytes, number);
  const bool was_here = lane_.is_here(peer);
  const std::uint64_t cookie = begin({.kind = Kind::kSend, .peer = peer});
  const Status status = lane_.send(peer, bytes, cookie, immediate);
  std::ranges::fill(bytes, std::byte{0xEE});  // They are this side's again.
  stage_.end_post(number, status);
  if (is_too_long && was_here && status != Status::kTooLong)
    fail(fmt::format("a message of {} bytes is taken: {}", length, to_string(status)));
  if (is_too_long && status == Status::kTooLong) return (void)operations_.erase(cookie);
  started(cookie, status);
}

void Driver::send_in_place(unsigned peer) {
  const std::span<std::byte> room = lane_.reserve(peer);
  if (room.empty()) return;
  const std::size_t most = stage_.shape().options.message_bytes;
  if (room.size() != most) return fail(fmt::format("a reservation of {} bytes, and not {}", room.size(), most));
  const auto cancel = [&] {
    if (const Status status = lane_.cancel(peer, room); status != Status::kOk)
      fail(fmt::format("cancel returned {}", to_string(status)));
  };
  if (random_.one_in(8)) return cancel();
  const std::span<std::byte> message = room.first(random_.between(kHeadBytes, most));
  const auto immediate = draw_immediate();
  const std::uint64_t number = begin_post(peer, message.size(), immediate, false);
  write_post(message, number);
  const std::uint64_t cookie = begin({.kind = Kind::kSend, .peer = peer});
  const Status status = lane_.commit(peer, message, cookie, immediate);
  stage_.end_post(number, status);
  started(cookie, status);
  if (status != Status::kOk) cancel();
}

void Driver::release_one() {
  if (kept_.empty()) return;
  const std::size_t at = random_.below(kept_.size());
  const mesh::Completion message = kept_[at];
  kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(at));
  std::uint64_t number = 0;
  std::memcpy(&number, message.bytes.data(), kHeadBytes);
  const Post* const post = stage_.find_post(number);
  if (post == nullptr || post->length != message.bytes.size() || !is_filled(message.bytes.subspan(kHeadBytes), number))
    fail(fmt::format("a message of process {} has changed while it was kept", message.peer));
  if (const Status status = lane_.release(message); status != Status::kOk)
    fail(fmt::format("release returned {}", to_string(status)));
  if (lane_.release(message) != Status::kBadArgument) fail("a message could be released twice");
  over_[over_next_++ % over_.size()] = message;
}

// --- one-sided ----------------------------------------------------------------------------------------------------

/// Whose memory the window of a peer is, where this lane knows that it is that of the peer that is connected.
Life* Driver::owner(unsigned peer) {
  Link& link = links_[peer];
  if (!link.window) find(peer);
  drain();
  if (!link.window || !link.is_here || !is_current_ || writer_ == kMostWriters) return nullptr;
  return stage_.owner_of(link.window->memory.address);
}

void Driver::find(unsigned peer) {
  const Nanoseconds begin = stage_.now();
  const Nanoseconds due = begin + random_.between(1, 3 * kMs);
  is_current_ = false;
  const auto found = lane_.find(peer, kWindow, deadline_at(due));
  stage_.check_time(life_, "find", begin, due, kSlack);
  if (found) {
    const Life* const owner = stage_.owner_of(found->memory.address);
    if (owner != nullptr && owner->id != peer) fail(fmt::format("find({}) found memory of {}", peer, owner->id));
    links_[peer].window = *found;
  } else if (found.error().status() == Status::kNotFound && stage_.now() < due && links_[peer].epoch != 0) {
    fail(fmt::format("find({}) gave up before its deadline: {}", peer, found.error().text()));
  }
}

/// Bytes of this process for an operation: registered ones, or any others.
std::span<std::byte> Driver::place_for(Operation& operation, std::size_t length) {
  const std::span<std::byte> scratch =
      life_.memory.subspan(kScratchAt + lane_.thread() * kScratchBytes / 2, kScratchBytes / 2);
  const std::size_t at = random_.below(scratch.size() / kPlainBytes) * kPlainBytes;
  const bool is_taken = std::ranges::any_of(
      operations_, [&](const auto& entry) { return entry.second.place.data() == scratch.data() + at; });
  if (is_taken || random_.one_in(2)) {
    operation.bytes.resize(length);
    operation.place = operation.bytes;
  } else {
    operation.place = scratch.subspan(at, length);
  }
  return operation.place;
}

void Driver::write(unsigned peer) {
  Life* const at = owner(peer);
  if (at == nullptr) return;
  auto& is_busy = written_[at->number].is_busy;
  const auto slot = static_cast<std::size_t>(std::ranges::find(is_busy, false) - is_busy.begin());
  if (slot == is_busy.size()) return;
  const std::size_t offset = kSlicesAt + writer_ * kSliceBytes + slot * kPlainBytes;
  const std::uint64_t cookie = begin({.kind = Kind::kWrite, .peer = peer, .at = at, .offset = offset});
  Operation& operation = operations_.at(cookie);
  operation.value = (std::uint64_t{writer_} << 40) + cookie;
  const std::span<std::byte> from = place_for(operation, random_.between(1, kPlainBytes));
  fill(from, operation.value);
  const Status status = lane_.write(*links_[peer].window, offset, from, cookie);
  is_busy[slot] = status == Status::kOk;
  started(cookie, status);
}

void Driver::write_with_immediate(unsigned peer) {
  Life* const at = owner(peer);
  if (at == nullptr) return;
  Written& written = written_[at->number];
  if (written.notices == kNoticeSlots) return;
  const std::size_t offset =
      kSlicesAt + writer_ * kSliceBytes + kPlainSlots * kPlainBytes + written.notices * kNoticeBytes;
  const std::size_t length = random_.between(kHeadBytes, kNoticeBytes);
  const auto immediate = static_cast<std::uint32_t>(random_.below(4));
  const std::uint64_t number = begin_post(peer, length, immediate, true);
  const std::uint64_t cookie = begin({.kind = Kind::kWrite, .peer = peer, .at = at, .offset = offset, .value = number});
  Operation& operation = operations_.at(cookie);
  operation.is_post = true;
  const std::span<std::byte> from = place_for(operation, length);
  write_post(from, number);
  const Status status = lane_.write(*links_[peer].window, offset, from, cookie, immediate);
  stage_.end_post(number, status);
  if (status == Status::kOk) ++written.notices;
  started(cookie, status);
}

void Driver::read(unsigned peer) {
  Life* const at = owner(peer);
  if (at == nullptr) return;
  const std::size_t length = random_.between(1, kPlainBytes);
  const std::size_t offset = random_.between(kConstantsAt, kSlicesAt - length);
  const std::uint64_t cookie = begin({.kind = Kind::kRead, .peer = peer, .at = at, .offset = offset});
  const std::span<std::byte> to = place_for(operations_.at(cookie), length);
  started(cookie, lane_.read(*links_[peer].window, offset, to, cookie));
}

void Driver::add(unsigned peer) {
  Life* const at = owner(peer);
  if (at == nullptr) return;
  const std::uint64_t cookie = begin({.kind = Kind::kAtomic, .peer = peer, .at = at});
  ++at->adds_started;
  const Status status = lane_.fetch_add(*links_[peer].window, 0, 1, cookie);
  if (status != Status::kOk) --at->adds_started;
  started(cookie, status);
}

void Driver::swap(unsigned peer) {
  Life* const at = owner(peer);
  if (at == nullptr) return;
  Written& written = written_[at->number];
  if (written.is_word_busy) return;
  const std::size_t offset = kWordsAt + writer_ * sizeof(std::uint64_t);
  const std::uint64_t cookie =
      begin({.kind = Kind::kAtomic, .peer = peer, .at = at, .offset = offset, .value = written.word, .is_swap = true});
  const Status status = lane_.compare_swap(*links_[peer].window, offset, written.word, written.word + 1, cookie);
  written.is_word_busy = status == Status::kOk;
  started(cookie, status);
}

// --- operations ---------------------------------------------------------------------------------------------------

std::uint64_t Driver::begin(Operation operation) {
  operation.epoch = is_current_ && links_[operation.peer].is_here ? links_[operation.peer].epoch : 0;
  operations_.emplace(++cookie_, std::move(operation));
  return cookie_;
}

void Driver::started(std::uint64_t cookie, Status status) {
  if (status == Status::kOk) return;
  const unsigned peer = operations_.at(cookie).peer;
  operations_.erase(cookie);
  const bool says_lost = damage_of(status) == Damage::kConnection || status == Status::kNotFound;
  // The post that finds the connection broken may say so before the lane tells of it.
  if (!says_lost && (status != Status::kAgain || !lane_.is_here(peer)))
    fail(fmt::format("a call for process {} returned {}, and it is {}", peer, to_string(status),
                     lane_.is_here(peer) ? "here" : "not here"));
}

void Driver::on_end(const mesh::Completion& completion) {
  const auto at = operations_.find(completion.cookie);
  if (at == operations_.end())
    return fail(fmt::format("operation {} ended, which is not under way", completion.cookie));
  const Operation operation = std::move(at->second);
  operations_.erase(at);
  if (operation.kind != completion.kind || operation.peer != completion.peer)
    return fail(fmt::format("operation {} ended as another one", completion.cookie));
  Link& link = links_[operation.peer];
  if (completion.status == Status::kOk) {
    if (operation.epoch == link.epoch) link.was_used = true;
  } else {
    if (damage_of(completion.status) != Damage::kConnection)
      fail(fmt::format("operation {} ended with {}", completion.cookie, to_string(completion.status)));
    if (operation.epoch == link.epoch) link.has_failed = true;
  }
  if (operation.at != nullptr) check_effect(operation, completion);
}

void Driver::check_effect(const Operation& operation, const mesh::Completion& completion) {
  Written& written = written_[operation.at->number];
  const std::span<std::byte> memory = operation.at->memory;
  const bool is_ok = completion.status == Status::kOk;
  if (operation.is_swap) {
    written.is_word_busy = false;
    const bool was_known = std::exchange(written.is_word_known, is_ok);
    if (!is_ok) return;
    const bool is_one_more = completion.old == operation.value + 1 && !was_known;
    if (completion.old != operation.value && !is_one_more)
      fail(fmt::format("a swap found {} where {} was", completion.old, operation.value));
    written.word = operation.value + 1;
    return;
  }
  if (!is_ok) return;  // Its slot is not used again: nobody knows when its bytes come.
  switch (operation.kind) {
    case Kind::kAtomic: {
      Life& at = *operation.at;
      ++at.adds_done;
      if (at.olds.size() <= completion.old) at.olds.resize(completion.old + 1);
      if (completion.old >= at.adds_started || std::exchange(at.olds[completion.old], 1) != 0)
        fail(fmt::format("an add found {}, as another one, or as no one could", completion.old));
      return;
    }
    case Kind::kRead: {
      std::vector<std::byte> all(kSlicesAt - kConstantsAt);
      fill(all, operation.at->number);
      if (!std::ranges::equal(operation.place,
                              std::span(all).subspan(operation.offset - kConstantsAt, operation.place.size())))
        fail(fmt::format("a read of life {} at {} found other bytes", operation.at->number, operation.offset));
      return;
    }
    default: break;
  }
  if (!operation.is_post) written.is_busy[(operation.offset - kSlicesAt) % kSliceBytes / kPlainBytes] = false;
  if (!memory.empty() && !std::ranges::equal(memory.subspan(operation.offset, operation.place.size()), operation.place))
    fail(fmt::format("a write to life {} at {} has ended, and its bytes are not there", operation.at->number,
                     operation.offset));
}

// --- completions --------------------------------------------------------------------------------------------------

void Driver::wait() {
  std::array<mesh::Completion, 3> some;
  const auto which = static_cast<mesh::Which>(random_.below(3));
  const Nanoseconds begin = stage_.now();
  const Nanoseconds due = begin + random_.between(1, random_.one_in(4) ? 2 * kMs : 20 * kUs);
  is_current_ = false;
  state_ = "waiting";
  const std::size_t count = lane_.wait(std::span(some).first(random_.between(1, 3)), deadline_at(due), which);
  stage_.check_time(life_, "wait", begin, due, kSlack);
  for (const mesh::Completion& completion : std::span(some).first(count)) {
    const bool is_send = completion.kind <= Kind::kAtomic;
    if (which != mesh::Which::kAll && is_send != (which == mesh::Which::kSends)) fail("wait took what it was not to");
    on_completion(completion);
  }
}

void Driver::drain() {
  std::array<mesh::Completion, 8> some;
  std::size_t count = some.size();
  is_current_ = false;
  while (count == some.size()) {
    count = lane_.poll(some);
    for (const mesh::Completion& completion : std::span(some).first(count)) on_completion(completion);
  }
  is_current_ = true;
  for (const auto& [cookie, operation] : operations_) {
    const Link& link = links_[operation.peer];
    if (operation.epoch != 0 && (operation.epoch != link.epoch || !link.is_here))
      return fail(fmt::format("process {} has left, and operation {} has not ended", operation.peer, cookie));
  }
}

void Driver::on_completion(const mesh::Completion& completion) {
  stage_.tell("life {} (process {}), lane {}: kind {}, {}, peer {}, cookie {}", life_.number, life_.id, lane_.thread(),
              static_cast<unsigned>(completion.kind), to_string(completion.status), completion.peer, completion.cookie);
  if (completion.peer >= links_.size() || completion.peer == life_.id) return fail("news of a peer that is none");
  switch (completion.kind) {
    case Kind::kJoined: return on_joined(completion.peer);
    case Kind::kLeft: return on_left(completion);
    case Kind::kReceive: {
      on_arrival(completion);
      kept_.push_back(completion);
      if (!keeps_all_ && !random_.one_in(4)) release_one();
      return;
    }
    case Kind::kWritten: return on_arrival(completion);
    default: return on_end(completion);
  }
}

void Driver::on_arrival(const mesh::Completion& completion) {
  std::uint64_t number = 0;
  if (completion.bytes.size() < kHeadBytes) return fail("a message arrived without its beginning");
  std::memcpy(&number, completion.bytes.data(), kHeadBytes);
  Post* const post = stage_.find_post(number);
  if (post == nullptr || post->is_refused || post->length != completion.bytes.size() ||
      !is_filled(completion.bytes.subspan(kHeadBytes), number))
    return fail(fmt::format("{} bytes arrived that nobody has sent", completion.bytes.size()));
  if (std::exchange(post->is_taken, true)) return fail(fmt::format("post {} arrived twice", number));
  const bool is_for_me =
      post->to == life_.id && post->lane == lane_.thread() && stage_.life(post->life).id == completion.peer;
  if (!is_for_me) return fail(fmt::format("post {} is for another lane, or by another process", number));
  if (post->immediate != completion.immediate || post->is_write != (completion.kind == Kind::kWritten))
    return fail(fmt::format("post {} arrived as something else", number));
  Link& link = links_[completion.peer];
  if (!link.is_here) return fail(fmt::format("post {} arrived, and its process is not here", number));
  link.was_used = true;
  std::uint64_t& least = next_of_sender_[post->life];
  if (link.sender) {
    if (*link.sender != post->life || link.next != post->place)
      return fail(fmt::format("post {} is place {} of life {}; {} of life {} was to come", number, post->place,
                              post->life, link.next, *link.sender));
  } else {
    const auto& accepted = stage_.accepted(post->life, post->lane, post->to);
    const bool is_second =
        post->epoch != 0 && post->place != 0 && stage_.find_post(accepted[post->place - 1])->epoch == post->epoch;
    if (is_second || post->place < least)
      return fail(fmt::format("post {} came first, which is place {} of life {}", number, post->place, post->life));
  }
  link.sender = post->life;
  link.next = least = post->place + 1;
}

void Driver::on_joined(unsigned peer) {
  Link& link = links_[peer];
  if (link.is_here) fail(fmt::format("process {} has joined twice", peer));
  link = Link{.epoch = link.epoch + 1, .is_here = true, .lefts = link.lefts, .old_window = link.old_window};
}

void Driver::on_left(const mesh::Completion& completion) {
  Link& link = links_[completion.peer];
  if (!std::exchange(link.is_here, false)) return fail(fmt::format("process {} has left twice", completion.peer));
  ++link.lefts;
  if (link.window) link.old_window = std::exchange(link.window, {});
  check_cause(completion);
  if (completion.status != Status::kClosed || !link.sender) return;
  // It said goodbye behind all that it has sent.
  const auto& accepted = stage_.accepted(*link.sender, lane_.thread(), life_.id);
  if (link.next < accepted.size())
    fail(fmt::format("life {} has left in order, and its post {} did not arrive", *link.sender, accepted[link.next]));
}

void Driver::check_cause(const mesh::Completion& completion) {
  const Link& link = links_[completion.peer];
  const char* const reason = to_string(completion.status);
  if (completion.status == Status::kClosed) {
    if (!stage_.has_said_goodbye(completion.peer))
      fail(fmt::format("process {} left in order, and has not", completion.peer));
    return;
  }
  if (damage_of(completion.status) != Damage::kConnection || completion.status == Status::kProtocol)
    return fail(fmt::format("process {} left because of {}", completion.peer, reason));
  // Each life goes once. A cut parts both ways, and a handshake of which half is held back may end twice.
  const unsigned most =
      stage_.count_gone(completion.peer) + 2 * stage_.cuts(life_.id, completion.peer, link.was_used ? kGivesUp : 0);
  if (link.lefts > most)
    fail(fmt::format("process {} left because of {}, for the {}. time; there are causes for {}", completion.peer,
                     reason, link.lefts, most));
}

// --- all processes ------------------------------------------------------------------------------------------------

void Driver::gather() {
  const unsigned round = stage_.round;
  const bool is_last = stage_.is_quiet;
  const std::uint64_t mine = random_.next();
  std::vector<std::uint64_t> all(stage_.processes());
  stage_.given[{round, life_.id}] = mine;
  const Nanoseconds begin = stage_.now();
  const Nanoseconds brief = random_.between(10 * kUs, 500 * kUs);
  const Nanoseconds due = begin + (is_last             ? 10'000 * kMs
                                   : random_.one_in(3) ? brief
                                                       : random_.between(kMs, 100 * kMs));
  state_ = "gathering";
  is_current_ = false;
  life_.is_gathering = true;
  const auto gathered =
      lane_.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), deadline_at(due));
  life_.is_gathering = false;
  life_.rounds = round;
  stage_.check_time(life_, "gather", begin, due, kSlack);
  stage_.tell("life {}: gather {}: {}", life_.number, round, gathered ? "all are here" : gathered.error().text());
  if (gathered) {
    ++stage_.gathered;
    for (unsigned id = 0; id < all.size(); ++id)
      if (all[id] != stage_.given[{round, id}]) fail(fmt::format("gather brought something else of process {}", id));
  } else if (is_last) {
    fail(fmt::format("the last gather: {}", gathered.error().text()));
  } else if (gathered.error().status() == Status::kTimedOut ? stage_.now() < due : stage_.is_calm()) {
    fail(fmt::format("gather: {}", gathered.error().text()));
  }
}

}  // namespace verbena::sim::meshes
