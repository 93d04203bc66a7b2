#include "mesh/mesh.hpp"

#include "base/cancellation.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/hash.hpp"
#include "base/limit.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "channel/life.hpp"
#include "host/thread.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace verbena::mesh {

using namespace std::chrono_literals;

namespace {

constexpr const char* kCall = "Mesh::join";
/// Limit of one attempt to connect: a stopped process delays the search for the others no longer than this.
constexpr auto kDialTimeout = 2s;
/// Nothing announces a process that begins to listen on another host: missing ones are asked for again after this, then
/// after twice as long each time.
constexpr auto kFirstPause = 5ms;
constexpr auto kLongestPause = 200ms;

[[nodiscard]] Result<void> check(const Options& options) {
  VERBENA_TRY(check_limit(kCall, "processes", options.processes, 1, kMaxProcesses));
  VERBENA_TRY(check_limit(kCall, "id", options.id, 0, options.processes - 1));
  VERBENA_TRY(check_limit(kCall, "threads", options.threads, 1, kMaxThreads));
  VERBENA_TRY(check_limit(kCall, "the length of job", options.job.size(), 0, 64));
  VERBENA_TRY(check_limit(kCall, "message_bytes", options.message_bytes, 1, kMaxMessageBytes));
  VERBENA_TRY(check_limit(kCall, "depth", options.depth, channel::wire::kMinDepth, channel::wire::kMaxDepth));
  VERBENA_TRY(check_limit(kCall, "operations", options.operations, 1, 2000));
  VERBENA_TRY(check_limit(kCall, "reservations", options.reservations, 0, 1024));
  VERBENA_TRY(
      check_limit(kCall, "batch", options.batch, 1, std::min(options.operations, engine::HeldRequests::kMostPlaces)));
  VERBENA_TRY(check_limit(kCall, "wait (a policy)", std::to_underlying(options.wait), 0,
                          std::to_underlying(WaitPolicy::kEvent)));
  const auto check_time = [](const char* name, auto time, std::int64_t least, std::int64_t most) {
    return check_limit(kCall, name, static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), -1)),
                       static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most));
  };
  VERBENA_TRY(check_time("spin (us)", options.spin, 0, 1'000'000));
  return check_time("join_timeout (ms)", options.join_timeout, 1, std::int64_t{24} * 3600 * 1000);
}

/// Whether no further attempt can change this.
[[nodiscard]] bool is_final(Status status) noexcept { return status == Status::kRejected; }

}  // namespace

// --- who is here --------------------------------------------------------------------------------------------------

Roster::Roster(unsigned processes, unsigned threads) : entries_(processes) {
  for (Entry& entry : entries_) entry.lanes.assign(threads, Place::kFree);
}

Result<void> Roster::enter(unsigned id, unsigned thread, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  if (incarnation < entry.incarnation)
    return fail(Status::kRejected, kCall, 0, "process {} has come back since: this is an earlier life of it", id);
  const bool is_new = incarnation != entry.incarnation;
  const bool is_taken = is_new ? std::ranges::any_of(entry.lanes, [](Place place) { return place != Place::kFree; })
                               : entry.lanes[thread] != Place::kFree;
  if (is_taken)
    return fail(Status::kBusy, kCall, 0, "process {} is connected already{}", id,
                is_new ? ", by another life of it: is there a second process with this id?" : "");
  entry.incarnation = incarnation;
  entry.lanes[thread] = Place::kComing;
  return {};
}

void Roster::joined(unsigned id, unsigned thread, std::uint64_t incarnation) noexcept {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  if (entry.incarnation != incarnation) return;
  entry.lanes[thread] = Place::kHere;
  entry.why = {};
}

void Roster::left(unsigned id, unsigned thread, std::uint64_t incarnation) noexcept {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  if (entry.incarnation == incarnation) entry.lanes[thread] = Place::kFree;
}

bool Roster::failed(unsigned id, const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  Error& known = entries_[id].why;
  if (is_final(known.status())) return false;
  const bool is_news = known.status() != why.status();
  known = why;
  return is_news;
}

bool Roster::is_free(unsigned id, unsigned thread) const noexcept {
  const std::lock_guard lock(mutex_);
  return entries_[id].lanes[thread] == Place::kFree;
}

std::vector<unsigned> Roster::missing(unsigned self) const {
  const std::lock_guard lock(mutex_);
  std::vector<unsigned> ids;
  for (unsigned id = 0; id < entries_.size(); ++id)
    if (id != self && std::ranges::any_of(entries_[id].lanes, [](Place place) { return place != Place::kHere; }))
      ids.push_back(id);
  return ids;
}

Error Roster::last_failure(unsigned id) const noexcept {
  const std::lock_guard lock(mutex_);
  return entries_[id].why;
}

// --- windows ------------------------------------------------------------------------------------------------------

Result<void> PublishedWindows::add(std::string_view name, const rdma::Window& window) {
  constexpr const char* kPublish = "Mesh::publish";
  VERBENA_TRY(check_limit(kPublish, "the length of name", name.size(), 1, wire::kMaxNameBytes));
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(windows_, name, &Window::name) != windows_.end())
    return fail(Status::kBusy, kPublish, 0, "{} is published already: take another name", name);
  windows_.push_back({std::string(name), window});
  count_.store(windows_.size(), std::memory_order_release);
  return {};
}

wire::WindowFrame PublishedWindows::frame(std::size_t index) const noexcept {
  const std::lock_guard lock(mutex_);
  return wire::frame_of(windows_[index].name, windows_[index].window);
}

// --- joining ------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Mesh>> Mesh::join(const Options& options, std::unique_ptr<Carrier> carrier) {
  VERBENA_TRY(check_process());
  const CancellationHeld held;
  VERBENA_TRY(check(options));
  if (carrier == nullptr) return fail(Status::kBadArgument, kCall, 0, "carrier must not be null");
  try {
    auto mesh = std::make_unique<MeshOfProcesses>(options, std::move(carrier));
    VERBENA_TRY(mesh->open());
    return mesh;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, kCall, 0, "no memory for the mesh's own tables: lower its limits");
  }
}

MeshOfProcesses::MeshOfProcesses(const Options& options, std::unique_ptr<Carrier> carrier)
    : options_(options),
      carrier_(std::move(carrier)),
      incarnation_(options.incarnation != 0 ? options.incarnation : unix_time_ns()),
      job_(hash64(bytes_of_text(options.job))),
      users_(options.allowed_uids),
      roster_(options.processes, options.threads) {
  users_.push_back(0);  // A process of root could read this process anyway.
}

// RDMA CM's private data is too short for what the processes exchange.
link::FabricOptions MeshOfProcesses::fabric_options(link::Role role, std::string_view address,
                                                    std::uint16_t port) const noexcept {
  return {.transport = {.bootstrap = Bootstrap::kSocket, .device = options_.device},
          .role = role,
          .address = std::string(address),
          .port = port,
          .allowed_uids = users_,
          .key_file = options_.key_file};
}

Result<void> MeshOfProcesses::listen(Deadline deadline) {
  VERBENA_ASSIGN(fabric_,
                 link::Fabric::open(fabric_options(link::Role::kServer, options_.address, options_.port), deadline));
  VERBENA_ASSIGN(device_, node::Device::of(fabric_->shared_nic()));
  regions_ = std::make_shared<RegionOwner>(device_);
  VERBENA_ASSIGN(auto listener, fabric_->listen({.port = options_.port}));
  port_ = listener->port();
  description_ = fmt::format("process {} of {}, {} thread{}, {} port {}; {}; {}", options_.id, options_.processes,
                             options_.threads, options_.threads == 1 ? "" : "s", fabric_->address(), port_,
                             fabric_->reason(), fabric_->admission());
  for (unsigned thread = 0; thread < options_.threads; ++thread) {
    VERBENA_ASSIGN(auto lane, LaneOfMesh::create(*this, thread));
    lanes_.push_back(std::move(lane));
  }
  VERBENA_ASSIGN(node::Acceptor* const acceptor, device_->acceptor());
  VERBENA_ASSIGN(door_, acceptor->open(std::move(listener), *this));
  acceptor_ = acceptor;
  return {};
}

Result<void> MeshOfProcesses::open() {
  join_deadline_ = Deadline::after(options_.join_timeout);
  VERBENA_TRY(listen(join_deadline_));
  VERBENA_ASSIGN(
      const Blob blob,
      wire::encode({.id = options_.id, .port = port_, .incarnation = incarnation_, .address = fabric_->address()}));
  VERBENA_TRY(carrier_->publish(options_.id, blob, join_deadline_));
  VERBENA_ASSIGN(dialer_, host::start_thread("verbena-mesh", [this] { dial_peers(); }));
  VERBENA_TRY(await_all(join_deadline_));
  has_joined_.store(true, std::memory_order_relaxed);
  return {};
}

Result<void> MeshOfProcesses::await_all(Deadline deadline) {
  bool is_ready = false;
  for (;;) {
    for (const auto& lane : lanes_) lane->turn();
    const std::vector<unsigned> missing = roster_.missing(options_.id);
    if (missing.empty() && !std::exchange(is_ready, true)) lanes_[0]->say_ready();
    const std::vector<unsigned> unready = lanes_[0]->not_ready();
    if (missing.empty() && unready.empty()) {
      for (const auto& lane : lanes_) lane->joined();
      return {};
    }
    for (const unsigned id : missing)
      if (const Error why = roster_.last_failure(id); is_final(why.status())) return std::unexpected(why);
    if (deadline.passed()) {
      if (missing.empty())
        return fail(Status::kTimedOut, kCall, 0,
                    "{} of {} others are connected, and have not found all others themselves: {}", unready.size(),
                    options_.processes - 1, wire::list_of(unready));
      const Error why = roster_.last_failure(missing.front());
      return fail(Status::kTimedOut, kCall, 0, "{} of {} others are missing: {}{}{}", missing.size(),
                  options_.processes - 1, wire::list_of(missing), why.status() != Status::kOk ? "; the first: " : "",
                  why.text());
    }
    // Woken for all lanes: by letters and messages of lane 0, and by `hand_over` and `look_again`.
    lanes_[0]->loop().wait(deadline);
  }
}

MeshOfProcesses::~MeshOfProcesses() {
  const CancellationHeld held;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (dialer_.joinable()) dialer_.join();
  if (acceptor_ != nullptr) acceptor_->close(door_);
  // Tells all lanes together: one after the other, each would wait this long for a peer that does not answer.
  const Deadline told = Deadline::after(channel::Life::kLinger);
  for (const auto& lane : lanes_) lane->tell_all(told);
  Deadline latest = Deadline::now();
  for (const auto& lane : lanes_)
    if (const Deadline of_lane = lane->say_goodbye(); of_lane.ticks() > latest.ticks()) latest = of_lane;
  for (const auto& lane : lanes_) lane->await_goodbyes(latest);
  lanes_.clear();
  if (device_) device_->registrations().remove_all(this);
}

// --- peers --------------------------------------------------------------------------------------------------------

wire::Hello MeshOfProcesses::hello(unsigned thread) const noexcept {
  return {.thread = static_cast<std::uint16_t>(thread),
          .id = options_.id,
          .processes = options_.processes,
          .threads = options_.threads,
          .message_bytes = static_cast<std::uint32_t>(options_.message_bytes),
          .incarnation = incarnation_,
          .job = job_};
}

void MeshOfProcesses::hand_over(std::unique_ptr<Peer> peer, unsigned thread) noexcept {
  // First: once it has the letter, the lane may see the peer end.
  roster_.joined(peer->id(), thread, peer->incarnation());
  lanes_[thread]->take(std::move(peer));
  lanes_[0]->loop().wake();
}

void MeshOfProcesses::peer_ended(const Peer& peer, unsigned thread) noexcept {
  roster_.left(peer.id(), thread, peer.incarnation());
  look_again();
}

/// Makes the dialing thread look again now.
void MeshOfProcesses::look_again() noexcept {
  {
    const std::lock_guard lock(mutex_);
    must_look_again_ = true;
  }
  changed_.notify_all();
}

/// A connecting peer with a higher id.
class MeshOfProcesses::Guest final : public node::Acceptor::Guest {
 public:
  Guest(MeshOfProcesses& mesh, std::unique_ptr<Peer> peer, unsigned thread) noexcept
      : mesh_(mesh), peer_(std::move(peer)), thread_(thread) {}
  ~Guest() override {
    if (peer_) mesh_.roster_.left(peer_->id(), thread_, peer_->incarnation());
  }
  Result<void> step() override { return peer_->connection().connect(Deadline::now()); }
  int fd() const noexcept override { return peer_->connection().wait_fd(); }
  short events() const noexcept override { return peer_->connection().wait_events(); }
  void done(const node::Acceptor::Stay& /*stay*/) noexcept override { mesh_.hand_over(std::move(peer_), thread_); }
  void refuse(const Error& why) noexcept override { peer_->connection().refuse(why); }

 private:
  MeshOfProcesses& mesh_;
  std::unique_ptr<Peer> peer_;
  const unsigned thread_;
};

Result<std::unique_ptr<node::Acceptor::Guest>> MeshOfProcesses::welcome(std::unique_ptr<link::Handshake>& handshake) {
  VERBENA_ASSIGN(const auto data, channel::Connection::user_data_of(handshake->remote()));
  VERBENA_ASSIGN(const wire::Hello theirs, wire::decode_hello(data));
  const wire::Hello mine = hello(theirs.thread);
  if (const auto fits = wire::check_limits(mine, theirs); !fits) {
    // A process of another mesh says nothing about this one.
    if (theirs.job == job_ && theirs.id < options_.processes) refusal_ = {theirs.id, fits.error()};
    return std::unexpected(fits.error());
  }
  if (theirs.id == options_.id && theirs.incarnation == incarnation_)
    return fail(Status::kProtocol, kCall, 0,
                "process {} has dialed itself: another process's address is that of an earlier life", theirs.id);
  if (theirs.id == options_.id)
    return fail(Status::kRejected, kCall, 0, "there is a process {} already: give each another id", theirs.id);
  if (theirs.id < options_.id)
    return fail(Status::kProtocol, kCall, 0, "process {} must wait until process {} dials it", theirs.id, options_.id);
  VERBENA_TRY(roster_.enter(theirs.id, theirs.thread, theirs.incarnation));
  auto peer = [&]() -> Result<std::unique_ptr<Peer>> {
    try {
      VERBENA_ASSIGN(auto made, lanes_[theirs.thread]->make_peer());
      made->meet(theirs.id, theirs.incarnation);
      VERBENA_TRY(made->connection().answer(std::move(handshake), wire::bytes_of(mine)));
      return made;
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, kCall, 0, "process {} has no memory for another peer", options_.id);
    }
  }();
  if (peer) return std::make_unique<Guest>(*this, std::move(*peer), theirs.thread);
  roster_.left(theirs.id, theirs.thread, theirs.incarnation);
  return std::unexpected(peer.error());
}

// Only after the peer was told: this process may end because of it.
void MeshOfProcesses::refused() noexcept {
  if (!refusal_) return;
  (void)roster_.failed(refusal_->first, refusal_->second);
  refusal_.reset();
  lanes_[0]->loop().wake();
}

// --- looking for peers -------------------------------------------------------------------------------------------

void MeshOfProcesses::dial_peers() noexcept {
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    const Found found = dial_all();
    std::unique_lock lock(mutex_);
    const bool is_told = std::exchange(must_look_again_, false);
    pause = is_told || found == Found::kSome ? kFirstPause : std::min(2 * pause, kLongestPause);
    const auto is_over = [this] { return is_ending_ || must_look_again_; };
    if (is_told && !is_ending_) continue;  // Somebody has left since then.
    if (found == Found::kAll) {
      changed_.wait(lock, is_over);
    } else {
      (void)changed_.wait_for(lock, pause, is_over);
    }
    if (is_ending_) return;
  }
}

MeshOfProcesses::Found MeshOfProcesses::dial_all() noexcept {
  bool found_some = false;
  bool lacks_some = false;
  for (unsigned thread = 0; thread < options_.threads; ++thread) {
    for (unsigned id = 0; id < options_.id; ++id) {
      if (!roster_.is_free(id, thread)) continue;
      {
        const std::lock_guard lock(mutex_);
        if (is_ending_) return Found::kAll;
      }
      const auto dialed = [&]() -> Result<void> {
        try {
          return dial(id, thread);
        } catch (const std::bad_alloc&) {
          return fail(Status::kNoMemory, kCall, 0, "no memory for another peer");
        }
      }();
      (dialed ? found_some : lacks_some) = true;
      if (dialed) continue;
      // Logs once per reason: the process may be away for long.
      if (roster_.failed(id, dialed.error()))
        log(VERBENA_LOG_INFO, "process {} is not connected: {}", id, dialed.error().text());
      if (is_final(dialed.error().status())) lanes_[0]->loop().wake();
    }
  }
  return !lacks_some ? Found::kAll : found_some ? Found::kSome : Found::kNone;
}

Result<void> MeshOfProcesses::dial(unsigned id, unsigned thread) {
  Deadline deadline = Deadline::after(kDialTimeout);
  // The end of a join that fails waits for this attempt, so it may not take longer.
  if (!has_joined_.load(std::memory_order_relaxed)) deadline = earlier(deadline, join_deadline_);
  VERBENA_ASSIGN(const Blob blob, carrier_->find(id));
  VERBENA_ASSIGN(const wire::Card card, wire::decode(blob));
  if (card.id != id)
    return fail(Status::kProtocol, kCall, 0, "the carrier brought the blob of process {} for process {}", card.id, id);
  VERBENA_ASSIGN(const auto fabric,
                 link::Fabric::open(fabric_options(link::Role::kClient, card.address, card.port), deadline));
  if (fabric->shared_nic() != fabric_->shared_nic())
    return fail(Status::kRejected, kCall, 0, "process {} at {} is reached over another NIC: name that one by device",
                id, card.address);
  VERBENA_ASSIGN(auto peer, lanes_[thread]->make_peer());
  const wire::Hello mine = hello(thread);
  VERBENA_TRY(peer->connection().dial(*fabric, card.port, wire::bytes_of(mine), deadline));
  VERBENA_ASSIGN(const wire::Hello theirs, wire::decode_hello(peer->connection().peer_data()));
  VERBENA_TRY(wire::check_limits(mine, theirs));
  if (theirs.id != id || theirs.thread != thread)
    return fail(Status::kProtocol, kCall, 0, "process {} answers at {} port {}, where process {} should be", theirs.id,
                card.address, card.port, id);
  VERBENA_TRY(roster_.enter(id, thread, theirs.incarnation));
  peer->meet(id, theirs.incarnation);
  if (const auto connected = peer->connection().connect(deadline); !connected) {
    roster_.left(id, thread, theirs.incarnation);
    return connected;
  }
  hand_over(std::move(peer), thread);
  return {};
}

// --- memory -------------------------------------------------------------------------------------------------------

Result<std::span<std::byte>> MeshOfProcesses::allocate(std::size_t bytes) {
  VERBENA_TRY(check_process());
  VERBENA_TRY(check_limit("Mesh::allocate", "bytes", bytes, 1, session::Registrations::kMaxBytes));
  VERBENA_ASSIGN(const session::RegisteredMemory* const memory,
                 device_->registrations().allocate(this, bytes, {.to = nic::Grant::To::kAnyPeer}));
  return std::span(memory->address, bytes);
}

Result<void> MeshOfProcesses::add(std::span<std::byte> memory, rdma::Access access) {
  VERBENA_TRY(check_process());
  VERBENA_TRY(device_->registrations().add(this, memory, access));
  return {};
}

Result<void> MeshOfProcesses::publish(std::string_view name, std::span<std::byte> memory) {
  VERBENA_TRY(check_process());
  const auto around = device_->registrations().find_around(scope(), memory, rdma::Access::kLocal);
  if (!around || memory.empty() || around->access == rdma::Access::kLocal)
    return fail(Status::kOutOfRange, "Mesh::publish", 0,
                "{} bytes at {} are not all in memory that was allocated here, or added with a right of peers",
                memory.size(), static_cast<const void*>(memory.data()));
  rdma::Window window = around->window();
  window.address = reinterpret_cast<std::uintptr_t>(memory.data());
  window.length = memory.size();
  VERBENA_TRY(windows_.add(name, window));
  for (const auto& lane : lanes_) lane->loop().wake();
  return {};
}

}  // namespace verbena::mesh
