// The mesh of verbena/mesh.h.
#include "api/c/arguments.hpp"
#include "api/c/codes.hpp"
#include "api/c/transport.hpp"
#include "base/error.hpp"
#include "base/limit.hpp"

#include <verbena/mesh.h>
#include <verbena/rdma.h>
#include <verbena/mesh.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

struct verbena_mesh_carrier_handle {
  std::unique_ptr<verbena::mesh::Carrier> carrier;
};

/// On cache lines of its own, because each lane is used by another thread.
struct alignas(64) verbena_mesh_lane_handle {
  verbena::mesh::Lane* lane = nullptr;
  std::size_t processes = 0;
  std::array<verbena::mesh::Completion, 32> batch{};  ///< Completions that one poll takes.
};

struct verbena_mesh_handle {
  std::unique_ptr<verbena::mesh::Mesh> mesh;
  std::vector<verbena_mesh_lane_handle> lanes;
};

namespace verbena::api::c {
namespace {

using mesh::Completion;
using mesh::Lane;

constexpr const char* kMeshOptions = "options";
/// Completions per call, at most.
constexpr std::size_t kMostCompletions = 65'536;

static_assert(mesh::kMaxProcesses == MESH_MAX_PROCESSES && mesh::kMaxThreads == MESH_MAX_THREADS);
static_assert(mesh::kMaxMessageBytes == MESH_MAX_MESSAGE_BYTES && mesh::kMaxGatherBytes == MESH_MAX_GATHER_BYTES);
static_assert(sizeof(mesh_counters_t) == sizeof(Counters));
static_assert(session::Registrations::kMaxNameBytes == MESH_MAX_NAME_BYTES);
static_assert(mesh::kBlobBytes == MESH_BLOB_BYTES && sizeof(mesh::Blob) == MESH_BLOB_BYTES);

// codes.cpp checks those of rdma.h one by one.
static_assert(int{MESH_OK} == int{RDMA_OK} && int{MESH_ERR_AGAIN} == int{RDMA_ERR_AGAIN});
static_assert(int{MESH_ERR_TIMED_OUT} == int{RDMA_ERR_TIMED_OUT} && int{MESH_ERR_NOT_FOUND} == int{RDMA_ERR_NOT_FOUND});
static_assert(int{MESH_ERR_TOO_LONG} == int{RDMA_ERR_TOO_LONG});
static_assert(int{MESH_ERR_BAD_ARGUMENT} == int{RDMA_ERR_BAD_ARGUMENT});
static_assert(int{MESH_ERR_OUT_OF_RANGE} == int{RDMA_ERR_OUT_OF_RANGE});
static_assert(int{MESH_ERR_LOCAL_ACCESS} == int{RDMA_ERR_LOCAL_ACCESS});
static_assert(int{MESH_ERR_UNSUPPORTED} == int{RDMA_ERR_UNSUPPORTED} && int{MESH_ERR_BUSY} == int{RDMA_ERR_BUSY});
// From here on they have the same order as those of rdma.h.
static_assert(int{MESH_ERR_PEER_LOST} == int{RDMA_ERR_PEER_LOST} && int{MESH_ERR_CLOSED} == int{RDMA_ERR_CLOSED});
static_assert(int{MESH_ERR_OTHER_HOST} == int{RDMA_ERR_OTHER_HOST} && int{MESH_ERR_FORKED} == int{RDMA_ERR_FORKED});

static_assert(unsigned{MESH_WAIT_SPIN} == std::to_underlying(WaitPolicy::kSpin));
static_assert(unsigned{MESH_WAIT_ADAPTIVE} == std::to_underlying(WaitPolicy::kAdaptive));
static_assert(unsigned{MESH_WAIT_EVENT} == std::to_underlying(WaitPolicy::kEvent));
static_assert(unsigned{MESH_ALL} == std::to_underlying(mesh::Which::kAll));
static_assert(unsigned{MESH_SENDS} == std::to_underlying(mesh::Which::kSends));
static_assert(unsigned{MESH_RECEIVES} == std::to_underlying(mesh::Which::kReceives));
static_assert(unsigned{MESH_SEND} == std::to_underlying(Completion::Kind::kSend));
static_assert(unsigned{MESH_WRITE} == std::to_underlying(Completion::Kind::kWrite));
static_assert(unsigned{MESH_READ} == std::to_underlying(Completion::Kind::kRead));
static_assert(unsigned{MESH_ATOMIC} == std::to_underlying(Completion::Kind::kAtomic));
static_assert(unsigned{MESH_RECEIVE} == std::to_underlying(Completion::Kind::kReceive));
static_assert(unsigned{MESH_WRITTEN} == std::to_underlying(Completion::Kind::kWritten));
static_assert(unsigned{MESH_JOINED} == std::to_underlying(Completion::Kind::kJoined));
static_assert(unsigned{MESH_LEFT} == std::to_underlying(Completion::Kind::kLeft));
static_assert(unsigned{MESH_ACCESS_LOCAL} == std::to_underlying(rdma::Access::kLocal));
static_assert(unsigned{MESH_ACCESS_REMOTE_READ} == std::to_underlying(rdma::Access::kRead));
static_assert(unsigned{MESH_ACCESS_REMOTE_WRITE} == std::to_underlying(rdma::Access::kWrite));
static_assert(unsigned{MESH_ACCESS_REMOTE_ATOMIC} == std::to_underlying(rdma::Access::kAtomic));
static_assert(unsigned{MESH_ACCESS_REMOTE_ALL} == std::to_underlying(rdma::Access::kAll));

/// Cause and fix of a status in the mesh's words.
const char* sentence_of_mesh(Status status) noexcept {
  switch (status) {
    case Status::kAgain:
      return "the peer has as much on the way as it may: complete something of this peer, then try again";
    case Status::kTimedOut:
      return "the deadline passed: a process is slow, stopped or not there; raise the timeout, or look at that process";
    case Status::kNotFound:
      return "the peer was never here, or has published no such window: check the number and the name";
    case Status::kTooLong: return "the message is longer than message_bytes: raise that, or write into a window";
    case Status::kOutOfRange: return "the range is not inside the window or the memory: compare it with the length";
    case Status::kLocalAccess: return "registered memory does not cover the bytes: register them";
    case Status::kUnsupported: return "this device does not have it: use another device";
    case Status::kBusy: return "it is in use already: take another name or address";
    case Status::kPeerLost:
      return "the peer's process, host or link is gone: go on without it, until a MESH_JOINED says that it is back";
    case Status::kRejected: return "another process has other limits, or the same id: give all the same options";
    case Status::kFlushed: return "the connection failed before this was done: its MESH_LEFT says why";
    case Status::kClosed: return "the peer has left: go on without it, until a MESH_JOINED says that it is back";
    case Status::kNoMemory: return "there is not enough memory: free some, lower the options, or raise ulimit -l";
    default: return sentence_of(status);
  }
}

/// Like `coded`, in the mesh's words, for a `body` that returns a Result.
template <class Body>
int coded_as_mesh(const char* call, Body&& body) noexcept {
  return coded(call, body, sentence_of_mesh);
}

/// The code of a failed operation. Unless the lane has said more, the general sentence is made only on request, because
/// MESH_ERR_AGAIN is frequent.
[[gnu::cold]] int tell_failure(Status status, const char* call, std::uint64_t failures_before) noexcept {
  if (failure_count() != failures_before && last_failure().status() == status)
    return code_of(note_as(as_written(call), last_failure()));
  return code_of(note_later(status, as_written(call), sentence_of_mesh));
}

/// The code of `body`'s status for a lane, if all arguments are given.
template <class Body, class... Arguments>
int on_lane(mesh_lane_t* lane, const char* call, Body&& body, const Arguments&... arguments) noexcept {
  if (!is_given(call, {"lane", lane}) || !(is_given(call, arguments) && ...)) return MESH_ERR_BAD_ARGUMENT;
  if (is_forked()) [[unlikely]]
    return refuse_forked(call);
  const std::uint64_t failures = failure_count();
  const Status status = body(*lane->lane);
  return status == Status::kOk ? MESH_OK : tell_failure(status, call, failures);
}

/// The same for bytes of the user's and of a peer's window.
template <class Body>
int on_window(mesh_lane_t* lane, const char* call, const Argument& window, const Argument& bytes,
              Body&& body) noexcept {
  if (is_given(call, {"lane", lane}) && is_given(call, window) && bytes.length == 0)
    return refuse(call, "bytes must be at least 1; got 0");
  return on_lane(lane, call, body, window, bytes);
}

/// The same for 8 bytes of a peer's window.
template <class Body>
int on_word(mesh_lane_t* lane, const char* call, const mesh_window_t* at, std::uint64_t offset, Body&& body) noexcept {
  const bool is_aligned = at == nullptr || (at->address + offset) % sizeof(std::uint64_t) == 0;
  if (lane != nullptr && !is_aligned) [[unlikely]]
    return refuse(call, "offset must lead to a multiple of 8; got {} in a window at address {}", offset, at->address);
  return on_lane(lane, call, body, Argument{"at", at});
}

/// Why a peer is not here; a search for one of its windows reports that first.
[[nodiscard]] Status why_not_here(Lane& lane, unsigned peer) noexcept {
  const auto found = lane.find(peer, "", Deadline::now());
  return found ? Status::kAgain : found.error().status();
}

[[nodiscard]] Result<Deadline> deadline_of(int timeout_ms) noexcept {
  if (timeout_ms < -1)
    return fail(Status::kBadArgument, "", 0, "timeout_ms must be at least 0, or -1 for no end; got {}", timeout_ms);
  if (timeout_ms == -1) return Deadline::never();
  return timeout_ms == 0 ? Deadline::now() : Deadline::after(std::chrono::milliseconds{timeout_ms});
}

[[nodiscard]] mesh::Window window_of(const mesh_window_t& window) noexcept {
  return {.peer = window.peer,
          .memory = {.address = window.address,
                     .length = window.length,
                     .memory_id = window.memory_id,
                     .rkey = window.rkey,
                     .access = static_cast<rdma::Access>(window.access)},
          .incarnation = window.incarnation};
}

[[nodiscard]] mesh_window_t told_of(const mesh::Window& window) noexcept {
  return {.address = window.memory.address,
          .length = window.memory.length,
          .memory_id = window.memory.memory_id,
          .incarnation = window.incarnation,
          .rkey = window.memory.rkey,
          .access = std::to_underlying(window.memory.access),
          .peer = window.peer};
}

[[nodiscard]] mesh_completion_t told_of(const Completion& completion) noexcept {
  return {.kind = static_cast<mesh_kind_t>(completion.kind),
          .code = code_of(completion.status),
          .peer = completion.peer,
          .has_immediate = completion.immediate ? 1 : 0,
          .immediate = completion.immediate.value_or(0),
          .number = completion.handle.generation,
          .cookie = completion.cookie,
          .bytes = completion.bytes.data(),
          .length = completion.bytes.size(),
          .old = completion.old,
          .handle = completion.handle.place};
}

/// Takes completions: the first ones by `first(some)`, further ones by polls.
template <class First>
int take(mesh_lane_t* lane, const char* call, mesh_completion_t* out, std::size_t count, mesh_which_t which,
         First&& first) noexcept {
  if (!is_given(call, {"lane", lane}) || !is_given(call, {"out", out})) return MESH_ERR_BAD_ARGUMENT;
  if (count == 0 || count > kMostCompletions)
    return refuse(call, "count must be 1 to {}; got {}", std::size_t{kMostCompletions}, count);
  if (static_cast<unsigned>(which) > MESH_RECEIVES)
    return refuse(call, "which must be MESH_ALL (0), MESH_SENDS (1) or MESH_RECEIVES (2); got {}",
                  static_cast<unsigned>(which));
  if (is_forked()) [[unlikely]]
    return refuse_forked(call);
  const auto kind = static_cast<mesh::Which>(which);
  std::span room = std::span(lane->batch).first(std::min(count, lane->batch.size()));
  std::size_t some = first(room, kind);
  std::size_t taken = 0;
  for (;;) {
    for (const Completion& completion : room.first(some)) out[taken++] = told_of(completion);
    if (some < room.size() || taken == count) return static_cast<int>(taken);
    room = room.first(std::min(count - taken, room.size()));
    some = lane->lane->poll(room, kind);
  }
}

/// Makes a carrier from a collective call in C.
class GatherOfC final : public mesh::Carrier {
 public:
  GatherOfC(unsigned processes, mesh_all_gather_t gather, void* context)
      : gather_(gather), context_(context), carrier_(mesh::gather_carrier(processes, call, this)) {}
  Result<void> publish(unsigned id, const mesh::Blob& blob, Deadline deadline) override {
    return carrier_->publish(id, blob, deadline);
  }
  Result<mesh::Blob> find(unsigned id) override { return carrier_->find(id); }

 private:
  static Result<void> call(const mesh::Blob& mine, std::span<mesh::Blob> all, void* context) {
    const auto& self = *static_cast<const GatherOfC*>(context);
    const int code = self.gather_(mine.data(), all.data(), sizeof mine, self.context_);
    if (code == 0) return {};
    return fail(Status::kSystem, "", 0, "gather must return 0 when all have given their part; it returned {}", code);
  }

  const mesh_all_gather_t gather_;
  void* const context_;
  const std::unique_ptr<mesh::Carrier> carrier_;
};

/// Gives the user the carrier that `make` returns, if this pointer and the arguments are given.
template <class Make, class... Arguments>
int make_carrier(const char* call, mesh_carrier_t** carrier, Make&& make, const Arguments&... arguments) noexcept {
  clear(carrier);
  if (!(is_given(call, arguments) && ...) || !is_given(call, {"carrier", carrier})) return MESH_ERR_BAD_ARGUMENT;
  return coded_as_mesh(call, [&]() -> Result<void> {
    auto made = std::make_unique<verbena_mesh_carrier_handle>();
    VERBENA_ASSIGN(made->carrier, make());
    *carrier = made.release();
    return {};
  });
}

/// Checks and converts only what C++ types cannot hold or name differently; the mesh checks the rest.
Result<mesh::Options> options_of(const mesh_options_t& options) {
  VERBENA_TRY(check_port(options.port, 0));
  VERBENA_TRY(check_limit(kMeshOptions, "wait", static_cast<unsigned>(options.wait), MESH_WAIT_SPIN, MESH_WAIT_EVENT));
  VERBENA_TRY(check_limit(kMeshOptions, "spin_us", options.spin_us, 0, 1'000'000));
  VERBENA_TRY(check_limit(kMeshOptions, "join_timeout_ms", options.join_timeout_ms, 1, 24U * 3600 * 1000));
  mesh::Options out{.id = options.id, .processes = options.processes, .threads = options.threads};
  out.job = or_empty(options.job);
  out.device = or_empty(options.device);
  out.address = or_empty(options.address);
  out.port = static_cast<std::uint16_t>(options.port);
  out.message_bytes = options.message_bytes;
  out.depth = options.depth;
  out.operations = options.operations;
  out.reservations = options.reservations;
  out.batch = options.batch;
  out.wait = static_cast<WaitPolicy>(options.wait);
  out.spin = std::chrono::microseconds{options.spin_us};
  out.join_timeout = std::chrono::milliseconds{options.join_timeout_ms};
  VERBENA_ASSIGN(out.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  out.key_file = or_empty(options.key_file);
  out.incarnation = options.incarnation;
  return out;
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::check_limit;
using verbena::Result;
using verbena::Status;

const char* mesh_error_string(int code) {
  return is_code(code) ? sentence_of_mesh(status_of(code)) : rdmaErrorString(code);
}

const char* mesh_error_detail(void) { return verbena::last_failure_text(); }

// --- joining

int mesh_options_init(mesh_options_t* options) {
  if (options == nullptr) return refuse(__func__, "options must not be null");
  const verbena::mesh::Options defaults;
  *options = {};  // Null and 0, except for these.
  options->processes = defaults.processes;
  options->threads = defaults.threads;
  options->message_bytes = defaults.message_bytes;
  options->depth = defaults.depth;
  options->operations = defaults.operations;
  options->reservations = defaults.reservations;
  options->batch = defaults.batch;
  options->wait = static_cast<mesh_wait_policy_t>(defaults.wait);
  options->spin_us = static_cast<unsigned>(defaults.spin.count());
  options->join_timeout_ms = static_cast<unsigned>(defaults.join_timeout.count());
  return MESH_OK;
}

int mesh_carrier_directory(const char* directory, const char* job, mesh_carrier_t** carrier) {
  return make_carrier(
      __func__, carrier, [&] { return verbena::mesh::directory_carrier(directory, job); },
      Argument{"directory", directory}, Argument{"job", job});
}

int mesh_carrier_hosts(const char* const* hosts, size_t count, mesh_carrier_t** carrier) {
  const auto make = [&]() -> Result<std::unique_ptr<verbena::mesh::Carrier>> {
    VERBENA_TRY(check_limit("", "count", count, 1, MESH_MAX_PROCESSES));
    std::vector<std::string> list;
    for (const char* const host : std::span(hosts, count)) {
      if (host == nullptr) return fail(Status::kBadArgument, "", 0, "hosts[{}] must not be null", list.size());
      list.emplace_back(host);
    }
    return verbena::mesh::host_list_carrier(list);
  };
  return make_carrier(__func__, carrier, make, Argument{"hosts", hosts});
}

int mesh_carrier_gather(unsigned processes, mesh_all_gather_t gather, void* context, mesh_carrier_t** carrier) {
  const auto make = [&]() -> Result<std::unique_ptr<verbena::mesh::Carrier>> {
    VERBENA_TRY(check_limit("", "processes", processes, 1, MESH_MAX_PROCESSES));
    return std::make_unique<GatherOfC>(processes, gather, context);
  };
  return make_carrier(__func__, carrier, make, Argument{"gather", gather});
}

void mesh_carrier_destroy(mesh_carrier_t* carrier) { delete carrier; }

int mesh_join(const mesh_options_t* options, mesh_carrier_t* carrier, mesh_t** mesh) {
  const std::unique_ptr<verbena_mesh_carrier_handle> taken(carrier);
  clear(mesh);
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("options", options));
    VERBENA_TRY(check_given("carrier", carrier));
    VERBENA_TRY(check_given("mesh", mesh));
    VERBENA_ASSIGN(const verbena::mesh::Options made, options_of(*options));
    auto joined = std::make_unique<verbena_mesh_handle>();
    VERBENA_ASSIGN(joined->mesh, verbena::mesh::Mesh::join(made, std::move(taken->carrier)));
    joined->lanes = std::vector<verbena_mesh_lane_handle>(made.threads);
    for (unsigned thread = 0; thread < made.threads; ++thread) {
      joined->lanes[thread].lane = &joined->mesh->lane(thread);
      joined->lanes[thread].processes = made.processes;
    }
    *mesh = joined.release();
    return {};
  });
}

int mesh_leave(mesh_t* mesh) {
  if (verbena::is_forked()) return refuse_forked(__func__);
  delete mesh;
  return MESH_OK;
}

const char* mesh_description(const mesh_t* mesh) { return mesh != nullptr ? mesh->mesh->description() : ""; }

mesh_lane_t* mesh_lane(mesh_t* mesh, unsigned thread) {
  mesh_lane_t* found = nullptr;
  (void)coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("mesh", mesh));
    VERBENA_TRY(check_limit("", "thread", thread, 0, mesh->lanes.size() - 1));
    found = &mesh->lanes[thread];
    return {};
  });
  return found;
}

// --- memory

int mesh_allocate(mesh_t* mesh, size_t bytes, void** memory) {
  clear(memory);
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("mesh", mesh));
    VERBENA_TRY(check_given("memory", memory));
    VERBENA_ASSIGN(const auto allocated, mesh->mesh->allocate(bytes));
    *memory = allocated.data();
    return {};
  });
}

int mesh_add(mesh_t* mesh, void* memory, size_t bytes, unsigned access) {
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("mesh", mesh));
    VERBENA_TRY(check_given("memory", memory));
    VERBENA_TRY(check_memory("bytes", bytes));
    VERBENA_TRY(check_limit("", "access", access, MESH_ACCESS_LOCAL, MESH_ACCESS_REMOTE_ALL));
    return mesh->mesh->add(bytes_at(memory, bytes), static_cast<verbena::rdma::Access>(access));
  });
}

int mesh_publish(mesh_t* mesh, const char* name, void* memory, size_t bytes) {
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("mesh", mesh));
    VERBENA_TRY(check_name(name));
    VERBENA_TRY(check_given("memory", memory));
    VERBENA_TRY(check_some("bytes", bytes));
    return mesh->mesh->publish(name, bytes_at(memory, bytes));
  });
}

// --- lanes

int mesh_is_here(mesh_lane_t* lane, unsigned peer) {
  bool is_here = false;
  const int code = on_lane(lane, __func__, [&](Lane& of) {
    is_here = of.is_here(peer);
    const bool is_wrong = !is_here && why_not_here(of, peer) == Status::kBadArgument;
    return is_wrong ? Status::kBadArgument : Status::kOk;
  });
  return code == MESH_OK && is_here ? 1 : code;
}

int mesh_reserve(mesh_lane_t* lane, unsigned peer, void** message) {
  clear(message);
  const auto reserve = [&](Lane& of) {
    *message = of.reserve(peer).data();
    if (*message != nullptr) return Status::kOk;
    return of.is_here(peer) ? Status::kAgain : why_not_here(of, peer);
  };
  return on_lane(lane, __func__, reserve, Argument{"message", message});
}

namespace {

int commit(const char* call, mesh_lane_t* lane, unsigned peer, void* message, size_t bytes, uint64_t cookie,
           std::optional<uint32_t> immediate) noexcept {
  return on_lane(
      lane, call, [&](Lane& of) { return of.commit(peer, bytes_at(message, bytes), cookie, immediate); },
      Argument{"message", message});
}

int send(const char* call, mesh_lane_t* lane, unsigned peer, const void* message, size_t bytes, uint64_t cookie,
         std::optional<uint32_t> immediate) noexcept {
  return on_lane(
      lane, call, [&](Lane& of) { return of.send(peer, bytes_at(message, bytes), cookie, immediate); },
      Argument{"message", message, "bytes", bytes});
}

int write(const char* call, mesh_lane_t* lane, const mesh_window_t* to, uint64_t offset, const void* from, size_t bytes,
          uint64_t cookie, std::optional<uint32_t> immediate) noexcept {
  return on_window(lane, call, {"to", to}, {"from", from, "bytes", bytes}, [&](Lane& of) {
    return of.write(window_of(*to), offset, bytes_at(from, bytes), cookie, immediate);
  });
}

}  // namespace

int mesh_commit(mesh_lane_t* lane, unsigned peer, void* message, size_t bytes, uint64_t cookie) {
  return commit(__func__, lane, peer, message, bytes, cookie, {});
}

int mesh_commit_imm(mesh_lane_t* lane, unsigned peer, void* message, size_t bytes, uint64_t cookie,
                    uint32_t immediate) {
  return commit(__func__, lane, peer, message, bytes, cookie, immediate);
}

int mesh_cancel(mesh_lane_t* lane, unsigned peer, void* message) {
  return on_lane(
      lane, __func__, [&](Lane& of) { return of.cancel(peer, bytes_at(message, 0)); }, Argument{"message", message});
}

int mesh_send(mesh_lane_t* lane, unsigned peer, const void* message, size_t bytes, uint64_t cookie) {
  return send(__func__, lane, peer, message, bytes, cookie, {});
}

int mesh_send_imm(mesh_lane_t* lane, unsigned peer, const void* message, size_t bytes, uint64_t cookie,
                  uint32_t immediate) {
  return send(__func__, lane, peer, message, bytes, cookie, immediate);
}

int mesh_find(mesh_lane_t* lane, unsigned peer, const char* name, int timeout_ms, mesh_window_t* window) {
  clear(window);
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("lane", lane));
    VERBENA_TRY(check_name(name));
    VERBENA_TRY(check_given("window", window));
    VERBENA_ASSIGN(const verbena::Deadline deadline, deadline_of(timeout_ms));
    VERBENA_ASSIGN(const verbena::mesh::Window found, lane->lane->find(peer, name, deadline));
    *window = told_of(found);
    return {};
  });
}

int mesh_write(mesh_lane_t* lane, const mesh_window_t* to, uint64_t offset, const void* from, size_t bytes,
               uint64_t cookie) {
  return write(__func__, lane, to, offset, from, bytes, cookie, {});
}

int mesh_write_imm(mesh_lane_t* lane, const mesh_window_t* to, uint64_t offset, const void* from, size_t bytes,
                   uint64_t cookie, uint32_t immediate) {
  return write(__func__, lane, to, offset, from, bytes, cookie, immediate);
}

int mesh_read(mesh_lane_t* lane, const mesh_window_t* from, uint64_t offset, void* to, size_t bytes, uint64_t cookie) {
  return on_window(lane, __func__, {"from", from}, {"to", to, "bytes", bytes},
                   [&](Lane& of) { return of.read(window_of(*from), offset, bytes_at(to, bytes), cookie); });
}

int mesh_fetch_add(mesh_lane_t* lane, const mesh_window_t* at, uint64_t offset, uint64_t add, uint64_t cookie) {
  return on_word(lane, __func__, at, offset,
                 [&](Lane& of) { return of.fetch_add(window_of(*at), offset, add, cookie); });
}

int mesh_compare_swap(mesh_lane_t* lane, const mesh_window_t* at, uint64_t offset, uint64_t expected, uint64_t desired,
                      uint64_t cookie) {
  return on_word(lane, __func__, at, offset,
                 [&](Lane& of) { return of.compare_swap(window_of(*at), offset, expected, desired, cookie); });
}

int mesh_flush(mesh_lane_t* lane) {
  return on_lane(lane, __func__, [](Lane& of) {
    of.flush();
    return Status::kOk;
  });
}

int mesh_flush_peer(mesh_lane_t* lane, unsigned peer) {
  return on_lane(lane, __func__, [&](Lane& of) {
    if (!of.is_here(peer)) return why_not_here(of, peer);
    of.flush(peer);
    return Status::kOk;
  });
}

// --- completions

int mesh_poll(mesh_lane_t* lane, mesh_completion_t* out, size_t count, mesh_which_t which) {
  return take(lane, __func__, out, count, which, [&](auto room, auto kind) { return lane->lane->poll(room, kind); });
}

int mesh_wait(mesh_lane_t* lane, mesh_completion_t* out, size_t count, mesh_which_t which, int timeout_ms) {
  const auto deadline = deadline_of(timeout_ms);
  if (!deadline) return code_of(note_as(as_written(__func__), deadline.error()));
  return take(lane, __func__, out, count, which,
              [&](auto room, auto kind) { return lane->lane->wait(room, *deadline, kind); });
}

int mesh_release(mesh_lane_t* lane, const mesh_completion_t* message) {
  const auto release = [&](Lane& of) {
    Completion completion;
    if (message->kind == MESH_RECEIVE) completion.kind = Completion::Kind::kReceive;
    completion.peer = message->peer;
    completion.handle = {.place = message->handle, .generation = message->number};
    return of.release(completion);
  };
  return on_lane(lane, __func__, release, Argument{"message", message});
}

// --- all processes

int mesh_gather(mesh_lane_t* lane, const void* mine, size_t bytes_each, void* all, int timeout_ms) {
  if (!is_given(__func__, {"lane", lane}) || !is_given(__func__, {"mine", mine, "bytes_each", bytes_each}) ||
      !is_given(__func__, {"all", all, "bytes_each", bytes_each}))
    return MESH_ERR_BAD_ARGUMENT;
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_limit("", "bytes_each", bytes_each, 0, MESH_MAX_GATHER_BYTES));
    VERBENA_ASSIGN(const verbena::Deadline deadline, deadline_of(timeout_ms));
    return lane->lane->gather(bytes_at(mine, bytes_each), bytes_at(all, bytes_each * lane->processes), deadline);
  });
}

int mesh_barrier(mesh_lane_t* lane, int timeout_ms) {
  return coded_as_mesh(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("lane", lane));
    VERBENA_ASSIGN(const verbena::Deadline deadline, deadline_of(timeout_ms));
    return lane->lane->barrier(deadline);
  });
}

// --- counters

int mesh_lane_counters(mesh_lane_t* lane, mesh_counters_t* counters) {
  clear(counters);
  const auto read = [&](Lane& of) {
    const verbena::Counters now = of.counters();
    *counters = {.work_requests = now.work_requests,
                 .direct = now.direct,
                 .doorbells = now.doorbells,
                 .completions = now.completions,
                 .inline_sends = now.inline_sends,
                 .receive_refills = now.receive_refills,
                 .empty_polls = now.empty_polls,
                 .sleeps = now.sleeps,
                 .quarantined = now.quarantined,
                 .bytes = now.bytes,
                 .strays = now.strays,
                 .keepalives = now.keepalives};
    return Status::kOk;
  };
  return on_lane(lane, __func__, read, Argument{"counters", counters});
}
