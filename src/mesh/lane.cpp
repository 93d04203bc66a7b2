#include "mesh/lane.hpp"

#include "base/cancellation.hpp"
#include "base/error.hpp"
#include "base/failure.hpp"
#include "base/fork.hpp"
#include "mesh/mesh.hpp"
#include "session/registrations.hpp"

#include <algorithm>
#include <utility>

namespace verbena::mesh {

// --- gathering ----------------------------------------------------------------------------------------------------

bool Gathering::take(unsigned peer, const wire::GatherFrame& frame) noexcept {
  // This process has given that call up. The peer's NIC may have repeated the frame for so long that the next call is
  // already in progress.
  const bool is_late = frame.number < number_ || (frame.number == number_ && !is_under_way_);
  if (is_late) return true;
  if (frame.bytes > kMaxGatherBytes || (frame.number != number_ && frame.number != number_ + 1)) return false;
  Set& set = sets_[frame.number % 2];
  if (set.is_here[peer] != 0) return false;
  set.values[peer] = frame;
  set.is_here[peer] = 1;
  return true;
}

void Gathering::end() noexcept {
  is_under_way_ = false;
  std::ranges::fill(sets_[number_ % 2].is_here, std::uint8_t{0});
}

// --- bring-up -----------------------------------------------------------------------------------------------------

LaneOfMesh::LaneOfMesh(MeshOfProcesses& mesh, unsigned thread)
    : mesh_(mesh),
      thread_(thread),
      peer_options_(PeerOptions::of(mesh.options())),
      peers_(mesh.options().processes),
      reasons_(mesh.options().processes, Status::kNotFound) {
  if (thread == 0) gathering_.emplace(mesh.options().processes);
}

Result<std::unique_ptr<LaneOfMesh>> LaneOfMesh::create(MeshOfProcesses& mesh, unsigned thread) {
  std::unique_ptr<LaneOfMesh> lane(new LaneOfMesh(mesh, thread));
  VERBENA_TRY(lane->open());
  return lane;
}

Result<void> LaneOfMesh::open() {
  const Options& options = mesh_.options();
  // A process that rejoins is connected before its earlier life has left the tables.
  const std::uint64_t most = 2 * std::uint64_t{options.processes} + 2;
  const std::uint64_t entries = most * channel::completions_needed(peer_options_.channel);
  const nic::Limits& limits = mesh_.device()->nic().limits();
  if (entries > limits.max_cqe)
    return fail(Status::kLimit, "Mesh::join", 0,
                "{} processes with depth {} and operations {} take {} entries of a completion queue, and {} has {}: "
                "lower one of them",
                options.processes, options.depth, options.operations, entries, mesh_.device()->nic().name(),
                limits.max_cqe);
  node::ShardOptions shard{.name = "mesh", .cpu = {}, .node = {}, .loop = {}};
  shard.loop.max_connections = static_cast<std::uint32_t>(most);
  shard.loop.cqe = static_cast<std::uint32_t>(entries);
  shard.loop.wait = options.wait;
  shard.loop.spin = options.spin;
  VERBENA_ASSIGN(shard_, node::Shard::create(mesh_.device(), shard));
  lives_.reserve(most);
  return {};
}

LaneOfMesh::~LaneOfMesh() {
  // Takes the letters of peers that have just arrived.
  if (shard_) loop().poll();
  lives_.clear();
}

void LaneOfMesh::take(std::unique_ptr<Peer> peer) noexcept {
  Peer& arrived = *peer.release();
  arrived.arrival.peer = &arrived;
  arrived.arrival.open = [](engine::Mailbox::Letter& letter) noexcept {
    Peer& opened = *static_cast<Peer::Arrival&>(letter).peer;
    opened.lane().adopt(opened);
  };
  loop().post(arrived.arrival);
}

void LaneOfMesh::adopt(Peer& peer) noexcept {
  lives_.emplace_back(&peer);  // Does not allocate: `open` reserved the room.
  peers_[peer.id()] = &peer;
  // Attaches in this thread: whatever is posted from now on completes in a poll that knows the connection.
  peer.connection().attach();
  peer.enter(++last_life_);
  peer.owes_ready = says_ready_;
  if (says_ready_ || mesh_.windows().count() != 0) list(peer);
}

// --- turns --------------------------------------------------------------------------------------------------------

void LaneOfMesh::list(Peer& peer) noexcept {
  if (std::exchange(peer.is_listed, true)) return;
  listed_.push(peer);
}

void LaneOfMesh::turn() noexcept {
  if (is_forked()) [[unlikely]]
    return;
  loop().poll();
  tend();
}

void LaneOfMesh::tend() noexcept {
  if (const std::size_t count = mesh_.windows().count(); count != windows_seen_) [[unlikely]] {
    windows_seen_ = count;
    for (Peer* const peer : peers_)
      if (peer != nullptr && peer->reason() == Status::kOk) list(*peer);
  }
  if (!listed_.empty()) [[unlikely]]
    tell_listed();
  if (has_spent_) [[unlikely]]
    reap();
}

void LaneOfMesh::tell_listed() noexcept {
  engine::Fifo<Peer> again;
  while (Peer* const peer = listed_.first()) {
    listed_.pop();
    peer->is_listed = false;
    if (peer->reason() != Status::kOk || tell(*peer) != Status::kAgain) continue;
    peer->is_listed = true;
    again.push(*peer);
  }
  listed_ = again;
}

Status LaneOfMesh::tell(Peer& peer) noexcept {
  if (const Status told = peer.send_notices(); told != Status::kOk) return told;
  while (peer.windows_told < mesh_.windows().count()) {
    const wire::WindowFrame frame = mesh_.windows().frame(peer.windows_told);
    if (const Status told = peer.tell(wire::bytes_of(frame)); told != Status::kOk) return told;
    ++peer.windows_told;
  }
  if (!peer.owes_ready) return Status::kOk;
  const Status told = peer.tell_ready(gathering_ ? gathering_->number() : 0);
  peer.owes_ready = told == Status::kAgain;
  return told;
}

void LaneOfMesh::reap() noexcept {
  has_spent_ = false;
  std::erase_if(lives_, [this](const std::unique_ptr<Peer>& life) {
    if (!life->is_spent() || life->is_listed) return false;
    if (peers_[life->id()] == life.get()) peers_[life->id()] = nullptr;
    return true;
  });
}

void LaneOfMesh::say_ready() noexcept {
  says_ready_ = true;
  for (Peer* const peer : peers_) {
    if (peer == nullptr || peer->reason() != Status::kOk) continue;
    peer->owes_ready = true;
    list(*peer);
  }
  tell_listed();
}

bool LaneOfMesh::is_ready_with(const Peer& peer) const noexcept {
  return peer.is_ready && says_ready_ && !peer.owes_ready && peer.is_told();
}

std::vector<unsigned> LaneOfMesh::not_ready() const {
  std::vector<unsigned> ids;
  for (unsigned id = 0; id < peers_.size(); ++id)
    if (id != mesh_.options().id && (peers_[id] == nullptr || !is_ready_with(*peers_[id]))) ids.push_back(id);
  return ids;
}

void LaneOfMesh::tell_all(Deadline deadline) noexcept {
  turn();
  // A message after its WRITE may wait for credit; the goodbye must not take that first.
  const auto has_told = [this] {
    tell_listed();
    return listed_.empty();
  };
  (void)loop().wait_until(has_told, deadline);
}

Deadline LaneOfMesh::say_goodbye() noexcept {
  Deadline latest = Deadline::now();
  for (const auto& life : lives_) {
    life->leave();
    if (life->reason() == Status::kOk) latest = life->connection().linger();
  }
  return latest;
}

void LaneOfMesh::await_goodbyes(Deadline deadline) noexcept {
  (void)loop().wait_until(
      [this] {
        return std::ranges::all_of(
            lives_, [](const auto& life) { return life->reason() != Status::kOk || life->connection().has_left(); });
      },
      deadline);
}

void LaneOfMesh::on_peer_end(Peer& peer) noexcept {
  reasons_[peer.id()] = peer.reason();
  mesh_.peer_ended(peer, thread_);
}

// --- what the user calls ------------------------------------------------------------------------------------------

bool LaneOfMesh::is_here(unsigned peer) const noexcept {
  return !is_forked() && peer < peers_.size() && peers_[peer] != nullptr && peers_[peer]->reason() == Status::kOk;
}

Peer* LaneOfMesh::find_peer(unsigned peer, Status& why) noexcept {
  if (is_forked()) [[unlikely]] {
    why = Status::kForked;
    return nullptr;
  }
  if (peer >= peers_.size() || peer == mesh_.options().id) [[unlikely]] {
    why = note(Status::kBadArgument, "Lane", "peer must be 0 to {}, and not {}, which is this process; got {}",
               peers_.size() - 1, mesh_.options().id, peer);
    return nullptr;
  }
  Peer* const found = peers_[peer];
  why = found == nullptr ? reasons_[peer] : found->reason();
  return why == Status::kOk ? found : nullptr;
}

std::span<std::byte> LaneOfMesh::reserve(unsigned peer) noexcept {
  Status why = Status::kOk;
  Peer* const found = find_peer(peer, why);
  if (found == nullptr) return {};
  const std::span<std::byte> room = found->reserve();
  return room.first(std::min(room.size(), mesh_.options().message_bytes));
}

Status LaneOfMesh::check_length(const char* call, std::size_t bytes) const noexcept {
  if (bytes <= mesh_.options().message_bytes) [[likely]]
    return Status::kOk;
  return note(Status::kTooLong, call, "a message of {} bytes; message_bytes is {}", bytes,
              mesh_.options().message_bytes);
}

Status LaneOfMesh::commit(unsigned peer, std::span<std::byte> message, std::uint64_t cookie,
                          std::optional<std::uint32_t> immediate) noexcept {
  Status why = Status::kOk;
  Peer* const found = find_peer(peer, why);
  if (found == nullptr) return why;
  if (why = check_length("Lane::commit", message.size()); why != Status::kOk) return why;
  if (!found->is_reserved(message)) [[unlikely]]
    return note(Status::kBadArgument, "Lane::commit", "message does not begin where a reservation for {} does", peer);
  return found->commit(message, cookie, immediate);
}

// Also takes back reservations for peers that are gone: their memory stays until the user has given it back.
Status LaneOfMesh::cancel(unsigned peer, std::span<std::byte> message) noexcept {
  Status why = Status::kOk;
  Peer* found = find_peer(peer, why);
  if (why == Status::kForked || why == Status::kBadArgument) return why;
  if (found == nullptr || !found->is_reserved(message)) {
    const auto life =
        std::ranges::find_if(lives_, [&](const auto& one) { return one->id() == peer && one->is_reserved(message); });
    found = life == lives_.end() ? nullptr : life->get();
  }
  if (found == nullptr)
    return note(Status::kBadArgument, "Lane::cancel", "message does not begin where a reservation for {} does", peer);
  found->cancel(message);
  has_spent_ |= found->is_spent();
  return Status::kOk;
}

Status LaneOfMesh::send(unsigned peer, std::span<const std::byte> message, std::uint64_t cookie,
                        std::optional<std::uint32_t> immediate) noexcept {
  Status why = Status::kOk;
  Peer* const found = find_peer(peer, why);
  if (found == nullptr) return why;
  if (why = check_length("Lane::send", message.size()); why != Status::kOk) return why;
  return found->send(message, cookie, immediate);
}

// Looks up once for all that a call touches in turn, because a lookup takes a lock.
const session::RegisteredMemory* LaneOfMesh::memory_at(std::uint64_t address, std::uint64_t length) noexcept {
  session::Registrations& all = mesh_.device()->registrations();
  const auto* const at = reinterpret_cast<const std::byte*>(address);
  if (last_memory_ && last_generation_ == all.generation() && last_memory_->holds(at, length)) [[likely]]
    return &*last_memory_;
  last_generation_ = all.generation();
  last_memory_ = all.find_around(mesh_.scope(), {at, length}, rdma::Access::kLocal);
  return last_memory_ ? &*last_memory_ : nullptr;
}

channel::LocalSpan LaneOfMesh::local(std::span<const std::byte> bytes) noexcept {
  const auto* const memory = memory_at(reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size());
  if (memory == nullptr) return channel::LocalSpan::bounced(bytes);
  return {.data = const_cast<std::byte*>(bytes.data()), .length = bytes.size(), .lkey = memory->lkey};
}

Result<Window> LaneOfMesh::find(unsigned peer, std::string_view name, Deadline deadline) {
  constexpr const char* kFind = "Lane::find";
  const CancellationHeld held;
  for (;;) {
    Status why = Status::kOk;
    Peer* const found = find_peer(peer, why);
    if (why == Status::kBadArgument) return std::unexpected(Error(why, kFind, 0, last_failure().text()));
    if (found == nullptr) return fail(why, kFind, 0, "process {} is not connected: {}", peer, sentence_of(why));
    if (Peer::Published* const published = found->find(name)) {
      const rdma::Window& window = published->window;
      if (!published->is_usable)
        VERBENA_TRY(found->connection().import_window({.address = window.address,
                                                       .length = window.length,
                                                       .rkey = window.rkey,
                                                       .access = session::verbs_access_of(window.access),
                                                       .memory_id = window.memory_id},
                                                      deadline));
      published->is_usable = true;
      return Window{.peer = peer, .memory = window, .incarnation = found->incarnation()};
    }
    if (deadline.passed())
      return fail(Status::kNotFound, kFind, 0, "process {} has published no window named {}", peer, name);
    loop().wait(deadline);
    turn();
  }
}

Peer* LaneOfMesh::find_place(const char* call, const Window& window, std::uint64_t offset, std::uint64_t length,
                             channel::RemoteSpan& place, Status& why) noexcept {
  Peer* const found = find_peer(window.peer, why);
  if (found == nullptr) return nullptr;
  if (window.incarnation != found->incarnation()) [[unlikely]] {
    why = note(Status::kPeerLost, call, "the window is of an earlier life of process {}: find it again", window.peer);
    return nullptr;
  }
  if (length == 0 || offset > window.memory.length || length > window.memory.length - offset) [[unlikely]] {
    why = note(length == 0 ? Status::kBadArgument : Status::kOutOfRange, call,
               "{} bytes at offset {} of a window of {} bytes", length, offset, window.memory.length);
    return nullptr;
  }
  place = {.address = window.memory.address + offset, .length = length, .rkey = window.memory.rkey};
  return found;
}

Status LaneOfMesh::write(const Window& to, std::uint64_t offset, std::span<const std::byte> from, std::uint64_t cookie,
                         std::optional<std::uint32_t> immediate) noexcept {
  Status why = Status::kOk;
  channel::RemoteSpan place;
  Peer* const found = find_place("Lane::write", to, offset, from.size(), place, why);
  return found == nullptr ? why : found->write(local(from), place, cookie, immediate);
}

Status LaneOfMesh::read(const Window& from, std::uint64_t offset, std::span<std::byte> to,
                        std::uint64_t cookie) noexcept {
  Status why = Status::kOk;
  channel::RemoteSpan place;
  Peer* const found = find_place("Lane::read", from, offset, to.size(), place, why);
  return found == nullptr ? why : found->read(local(to), place, cookie);
}

Status LaneOfMesh::change(const char* call, const Window& at, std::uint64_t offset, const channel::Change& change,
                          std::uint64_t cookie) noexcept {
  Status why = Status::kOk;
  channel::RemoteSpan place;
  Peer* const found = find_place(call, at, offset, sizeof(std::uint64_t), place, why);
  return found == nullptr ? why : found->change(change, place, cookie);
}

Status LaneOfMesh::fetch_add(const Window& at, std::uint64_t offset, std::uint64_t add, std::uint64_t cookie) noexcept {
  return change("Lane::fetch_add", at, offset, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = add}, cookie);
}

Status LaneOfMesh::compare_swap(const Window& at, std::uint64_t offset, std::uint64_t expected, std::uint64_t desired,
                                std::uint64_t cookie) noexcept {
  return change("Lane::compare_swap", at, offset,
                {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, cookie);
}

void LaneOfMesh::flush() noexcept {
  if (mesh_.options().batch == 1) return;
  for (Peer* const peer : peers_)
    if (peer != nullptr && peer->reason() == Status::kOk) peer->flush();
}

void LaneOfMesh::flush(unsigned peer) noexcept {
  if (is_here(peer)) peers_[peer]->flush();
}

// --- completions --------------------------------------------------------------------------------------------------

std::size_t LaneOfMesh::take_records(engine::Fifo<Record>& from, std::span<Completion> out) noexcept {
  std::size_t count = 0;
  for (; count < out.size() && !from.empty(); ++count) {
    Record& record = *from.first();
    from.pop();
    out[count] = record.completion;
    Peer& peer = *record.peer;
    peer.was_taken(record);
    has_spent_ |= peer.is_spent();
  }
  return count;
}

std::size_t LaneOfMesh::take_ended(std::span<Completion> out, Which which) noexcept {
  std::size_t count = 0;
  if (which != Which::kReceives) count += take_records(sends_, out);
  if (which != Which::kSends) count += take_records(receives_, out.subspan(count));
  return count;
}

std::size_t LaneOfMesh::poll(std::span<Completion> out, Which which) noexcept {
  turn();
  has_room_ = false;  // A caller that polls retries by itself.
  return take_ended(out, which);
}

std::size_t LaneOfMesh::wait(std::span<Completion> out, Deadline deadline, Which which) noexcept {
  if (out.empty() || is_forked()) return 0;
  turn();
  if (const std::size_t count = take_ended(out, which); count != 0) return count;
  const CancellationHeld held;
  while (!std::exchange(has_room_, false)) {
    // Peers that must be told something wait for credit, and credit comes with a completion too.
    const bool is_over = loop().wait(deadline) == 0 && deadline.passed();
    // The wait has polled; handle its results without another look at the queue.
    tend();
    if (const std::size_t count = take_ended(out, which); count != 0 || is_over) return count;
  }
  return 0;
}

Peer* LaneOfMesh::find_life(const Completion& message) noexcept {
  const std::uint64_t life = Peer::life_of(message.handle);
  if (message.peer < peers_.size() && peers_[message.peer] != nullptr && peers_[message.peer]->life() == life)
      [[likely]]
    return peers_[message.peer];
  const auto found = std::ranges::find(lives_, life, [](const auto& one) { return one->life(); });
  return found == lives_.end() ? nullptr : found->get();
}

Status LaneOfMesh::release(const Completion& message) noexcept {
  const auto refuse = [] {
    return note(Status::kBadArgument, "Lane::release", "message was not returned by poll, or is released already");
  };
  if (is_forked()) return Status::kForked;
  if (message.kind != Completion::Kind::kReceive) return refuse();
  Peer* const found = find_life(message);
  Record* const record = found == nullptr ? nullptr : found->find_held(message.handle);
  if (record == nullptr) return refuse();
  Peer& peer = *found;
  peer.give_back(*record);
  has_spent_ |= peer.is_spent();
  return Status::kOk;
}

// --- all processes ------------------------------------------------------------------------------------------------

void LaneOfMesh::on_ready(Peer& peer, std::uint32_t gathers) noexcept {
  peer.is_ready = true;
  if (gathering_ && !has_joined_ && gathers > gathering_->number()) gathering_->skip_to(gathers);
}

void LaneOfMesh::on_gather(Peer& peer, std::span<const std::byte> body) noexcept {
  wire::GatherFrame frame;
  if (!wire::take_all(body, frame) || !gathering_ || !gathering_->take(peer.id(), frame))
    peer.connection().fail(Status::kProtocol);
}

Result<void> LaneOfMesh::gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline) {
  constexpr const char* kGather = "Lane::gather";
  VERBENA_TRY(check_process());
  const CancellationHeld held;
  const unsigned processes = mesh_.options().processes;
  if (!gathering_) return fail(Status::kBadArgument, kGather, 0, "this is lane {}: call it on lane 0", thread_);
  if (mine.size() > kMaxGatherBytes || all.size() != mine.size() * processes)
    return fail(Status::kBadArgument, kGather, 0,
                "mine has {} bytes (at most {}), and all {}: it must have {} times as many", mine.size(),
                kMaxGatherBytes, all.size(), processes);
  wire::GatherFrame frame{.number = gathering_->begin(), .bytes = static_cast<std::uint32_t>(mine.size())};
  std::ranges::copy(mine, frame.value.begin());
  const auto gathered = exchange(frame, deadline);
  if (gathered) {
    for (unsigned id = 0; id < processes; ++id) {
      const wire::GatherFrame& value = id == mesh_.options().id ? frame : gathering_->value(id);
      if (value.bytes != mine.size())
        return fail(Status::kProtocol, kGather, 0,
                    "process {} gave {} bytes, and this one {}: all must give the same number", id, value.bytes,
                    mine.size());
      std::copy_n(value.value.begin(), mine.size(), all.begin() + static_cast<std::ptrdiff_t>(id * mine.size()));
    }
  }
  gathering_->end();
  return gathered;
}

Result<void> LaneOfMesh::exchange(const wire::GatherFrame& frame, Deadline deadline) {
  const unsigned self = mesh_.options().id;
  std::vector<unsigned> unsent;
  std::vector<unsigned> awaited;
  // Starts with the next ids, so that not all processes send to process 0 at once.
  for (unsigned i = 1; i < peers_.size(); ++i) {
    unsent.push_back(static_cast<unsigned>((self + i) % peers_.size()));
    awaited.push_back(unsent.back());
  }
  for (;;) {
    Status failure = Status::kOk;
    unsigned failed = 0;
    const auto is_done_with = [&](unsigned id) {
      Status why = Status::kOk;
      Peer* const peer = find_peer(id, why);
      if (peer != nullptr) why = peer->tell_for_sure(wire::bytes_of(frame));
      if (why == Status::kAgain) return false;
      // A value that it gave before it left counts.
      if (why != Status::kOk && !gathering_->has(id) && failure == Status::kOk) {
        failure = why;
        failed = id;
      }
      return true;
    };
    std::erase_if(unsent, is_done_with);
    std::erase_if(awaited, [&](unsigned id) {
      const bool is_sent =
          std::ranges::find(unsent, id) == unsent.end() && (peers_[id] == nullptr || peers_[id]->is_told());
      return is_sent && gathering_->has(id);
    });
    if (failure != Status::kOk)
      return fail(failure, "Lane::gather", 0, "process {} is not connected: {}", failed, sentence_of(failure));
    if (awaited.empty()) return {};
    for (const unsigned id : awaited) {
      if (is_here(id) || gathering_->has(id)) continue;
      const Status why = peers_[id] == nullptr ? reasons_[id] : peers_[id]->reason();
      return fail(why, "Lane::gather", 0, "process {} left before it called gather: {}", id, sentence_of(why));
    }
    if (deadline.passed())
      return fail(Status::kTimedOut, "Lane::gather", 0, "not here yet: {} of {} others: {}", awaited.size(),
                  peers_.size() - 1, wire::list_of(awaited));
    loop().wait(deadline);
    turn();
  }
}

}  // namespace verbena::mesh
