/// \file
/// The interface of RDMALib, over verbena::mesh and verbena::SlabManager, for programs in its style: servers that know
/// each other by a list of hosts, messages in buffers of the store, a callback for each completion.
///
/// This is a header without a part in the archive: RDMALib's functions cannot return failures, so they throw here
/// (NovaError), which the archive never does, and RDMALib's names belong to namespaces that the archive does not
/// define.
///
/// All servers listen on the same port plus their id, on all addresses unless Options say otherwise. Differences from
/// the original, besides those that a function names: docs/coming-from.md.
#pragma once

#include <verbena/compat/nova_control.hpp>
#include <verbena/compat/nova_error.hpp>
#include <verbena/compat/nova_memory.hpp>
#include <verbena/mesh.hpp>

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// The field's names, not ours. NOLINTBEGIN(readability-identifier-naming)

namespace nova {

namespace detail {

/// Completions that wait for the poll of their server, in the order they came. Allocates once.
class Waiting {
 public:
  /// Makes room for `capacity` completions, at least one.
  explicit Waiting(std::size_t capacity) : nodes_(capacity) {
    for (std::size_t i = 0; i < capacity; ++i) nodes_[i].next = i + 1;
    nodes_.back().next = kNone;
  }
  /// How many wait.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// How many more have room.
  [[nodiscard]] std::size_t room() const noexcept { return nodes_.size() - size_; }
  /// Precondition: there is room.
  void push(const verbena::mesh::Completion& one) noexcept {
    const std::size_t added = std::exchange(free_, nodes_[free_].next);
    nodes_[added] = {one, kNone};
    (last_ == kNone ? first_ : nodes_[last_].next) = added;
    last_ = added;
    ++size_;
  }
  /// Removes and returns the first one, or the first one of `peer`.
  [[nodiscard]] std::optional<verbena::mesh::Completion> take(std::optional<unsigned> peer) noexcept {
    std::size_t before = kNone;
    std::size_t at = first_;
    while (at != kNone && peer && nodes_[at].completion.peer != *peer) before = std::exchange(at, nodes_[at].next);
    if (at == kNone) return {};
    (before == kNone ? first_ : nodes_[before].next) = nodes_[at].next;
    if (last_ == at) last_ = before;
    nodes_[at].next = std::exchange(free_, at);
    --size_;
    return nodes_[at].completion;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Node {
    verbena::mesh::Completion completion{};
    std::size_t next = kNone;
  };
  std::vector<Node> nodes_;
  std::size_t first_ = kNone, last_ = kNone, free_ = 0, size_ = 0;
};

}  // namespace detail

using rdmaio::RdmaCtrl;

/// A store calls it for each completion. It may post, flush, poll and throw; an exception leaves the poll, and the next
/// poll continues with the completion after it.
class NovaMsgCallback {
 public:
  virtual ~NovaMsgCallback() = default;
  /// `type` and `buf`: IBV_WC_SEND, IBV_WC_RDMA_WRITE and IBV_WC_RDMA_READ with the buffer that the caller posted
  /// (READ: where the bytes are); IBV_WC_RECV with the message, which stays until this returns;
  /// IBV_WC_RECV_RDMA_WITH_IMM with the place in this server's memory that was written. `wr_id` is what the post
  /// returned, or counts arrivals. `imm_data` is 0 where the peer gave none. The result is not used.
  virtual bool ProcessRDMAWC(ibv_wc_opcode type, std::uint64_t wr_id, int remote_server_id, char* buf,
                             std::uint32_t imm_data) = 0;
};

/// Does nothing.
class DummyNovaMsgCallback : public NovaMsgCallback {
 public:
  bool ProcessRDMAWC(ibv_wc_opcode /*type*/, std::uint64_t /*wr_id*/, int /*remote_server_id*/, char* /*buf*/,
                     std::uint32_t /*imm_data*/) override {
    return true;
  }
};

/// A thread's connections to the same thread of all other servers. Posts wait, up to the deadline of the RdmaCtrl, for
/// the peer's credit, and while max_num_sends operations to that server have not been called back. While they wait they
/// call back what has completed, unless a callback called them. Errors of all calls that take a server: kBadArgument
/// (no such server), kPeerLost or kClosed (it has gone, and may come back), kTimedOut.
/// \thread one at a time  \alloc setup (constructor, Init); none afterwards, except where something fails
class NovaRDMARCStore {
 public:
  /// `endpoints`: all other servers. `max_num_sends`: the most operations to a server that have not been called back, 1
  /// to 2000. `max_msg_size`: 1 to verbena::mesh::kMaxMessageBytes. `doorbell_batch_size`: posts to a server that share
  /// a doorbell, 1 to max_num_sends; more than 32 act as 32. `mr_buf`: memory that peers read and write, which stays
  /// until the store and its RdmaCtrl have ended. `buf` is not used. Errors: kBadArgument.
  NovaRDMARCStore(char* /*buf*/, int thread_id, const std::vector<QPEndPoint>& endpoints, std::uint32_t max_num_sends,
                  std::uint32_t max_msg_size, std::uint32_t doorbell_batch_size, std::uint32_t my_server_id,
                  char* mr_buf, std::uint64_t mr_size, std::uint64_t port, NovaMsgCallback* callback)
      : thread_id_(detail::check_number("thread_id", static_cast<std::uint64_t>(thread_id), 0,
                                        verbena::mesh::kMaxThreads - 1)),
        max_num_sends_(detail::check_number("max_num_sends", max_num_sends, 1, 2000)),
        memory_(reinterpret_cast<std::byte*>(mr_buf), mr_size),
        callback_(callback),
        sends_(capacity_of(endpoints, max_num_sends)),
        receives_(capacity_of(endpoints, max_num_sends)) {
    detail::check_number("max_msg_size", max_msg_size, 1, verbena::mesh::kMaxMessageBytes);
    detail::check_number("doorbell_batch_size", doorbell_batch_size, 1, max_num_sends);
    if (callback == nullptr || mr_buf == nullptr || mr_size == 0) detail::refuse("callback and mr_buf must be there");
    terms_ = {.max_num_sends = max_num_sends, .max_msg_size = max_msg_size, .batch = doorbell_batch_size};
    enlist(endpoints, my_server_id, port);
  }
  NovaRDMARCStore(const NovaRDMARCStore&) = delete;
  NovaRDMARCStore& operator=(const NovaRDMARCStore&) = delete;
  ~NovaRDMARCStore() = default;  ///< No callback follows.

  /// Connects to all other servers, and returns once their stores of this thread exist and have announced their memory.
  /// Call it once for each thread. Errors: those of mesh::Mesh::join and mesh::Mesh::add, kTimedOut (who is missing).
  void Init(RdmaCtrl* ctrl) {
    if (lane_ != nullptr) detail::refuse("Init was called already");
    if (ctrl == nullptr || ctrl->server_id_ != static_cast<std::int64_t>(servers_[terms_.rank].id))
      detail::refuse("the RdmaCtrl must be that of server " + std::to_string(servers_[terms_.rank].id));
    if (thread_id_ >= ctrl->options_.threads)
      detail::refuse("thread_id is " + std::to_string(thread_id_) + " and the RdmaCtrl was made for " +
                     std::to_string(ctrl->options_.threads) + " threads: RdmaCtrl(server_id, port, {.threads = ...})");
    timeout_ = ctrl->options_.join_timeout;
    mesh_ = ctrl->join(terms_);
    ctrl->share(memory_, thread_id_);
    lane_ = &mesh_->lane(thread_id_);
    const auto deadline = verbena::Deadline::after(timeout_);
    for (Server& server : servers_)
      if (server.peer != terms_.rank) find_window(server, deadline);
    await_told(deadline);
  }

  /// Reserves a buffer of max_msg_size bytes for a message. The caller owns it until PostSend or CancelSendBuf, or
  /// until a poll after the server has gone. Each call reserves another one, and waits while max_num_sends of them (at
  /// most 1024) are reserved or being sent.
  [[nodiscard]] char* GetSendBuf(int remote_server_id) {
    constexpr const char* kCall = "GetSendBuf";
    Server& server = find(kCall, remote_server_id);
    make_room(kCall, server);
    std::span<std::byte> room = lane_->reserve(server.peer);
    if (room.empty()) {
      const auto deadline = verbena::Deadline::after(timeout_);
      for (; room.empty(); room = lane_->reserve(server.peer)) {
        if (!lane_->is_here(server.peer)) fail(verbena::Status::kPeerLost, kCall, server);
        turn(deadline, kCall, server);
      }
    }
    server.reserved.push_back(reinterpret_cast<char*>(room.data()));
    return server.reserved.back();
  }
  /// Gives a buffer of GetSendBuf back unsent.
  void CancelSendBuf(char* buf, int remote_server_id) {
    Server& server = find("CancelSendBuf", remote_server_id);
    if (std::erase(server.reserved, buf) == 0)
      detail::refuse("CancelSendBuf: GetSendBuf has not reserved buf for that server");
    (void)lane_->cancel(server.peer, bytes_of(buf, terms_.max_msg_size));
  }

  /// Sends `size` bytes, 0 to max_msg_size. It sends a buffer of GetSendBuf in place, and the store owns the buffer
  /// from then on. It copies other memory, which you may reuse at once. Null: the buffer that GetSendBuf returned last.
  /// `imm_data` 0: none. Returns the number of the operation, which no other one of this store has.
  std::uint64_t PostSend(const char* localbuf, std::uint32_t size, int remote_server_id, std::uint32_t imm_data) {
    constexpr const char* kCall = "PostSend";
    Server& server = find(kCall, remote_server_id);
    detail::check_number("the size of a message", size, 0, terms_.max_msg_size);
    if (localbuf == nullptr && server.reserved.empty())
      detail::refuse("PostSend: localbuf is null, and GetSendBuf has reserved nothing for that server");
    char* const buf = localbuf == nullptr ? server.reserved.back() : const_cast<char*>(localbuf);
    const std::span<std::byte> message = bytes_of(buf, size);
    if (std::ranges::find(server.reserved, buf) == server.reserved.end())
      return post(kCall, server, [&](std::uint64_t wr_id) {
        return lane_->send(server.peer, message, wr_id, immediate_of(imm_data));
      });
    const std::uint64_t posted = post(kCall, server, [&](std::uint64_t wr_id) {
      return lane_->commit(server.peer, message, wr_id, immediate_of(imm_data));
    });
    std::erase(server.reserved, buf);
    return posted;
  }

  /// Reads `size` bytes of the server's memory to `localbuf + local_offset`. `remote_addr`: an offset in its mr_buf, or
  /// an address there. Don't touch the bytes before the callback. Returns as PostSend does. Errors: kOutOfRange.
  std::uint64_t PostRead(char* localbuf, std::uint32_t size, int remote_server_id, std::uint64_t local_offset,
                         std::uint64_t remote_addr, bool is_remote_offset) {
    constexpr const char* kCall = "PostRead";
    Server& server = find(kCall, remote_server_id);
    check_memory(kCall, server, localbuf);
    const verbena::mesh::Window window = window_of(server);
    const std::uint64_t offset = is_remote_offset ? remote_addr : remote_addr - window.memory.address;
    return post(kCall, server, [&](std::uint64_t wr_id) {
      return lane_->read(window, offset, bytes_of(localbuf + local_offset, size), wr_id);
    });
  }
  /// Writes `size` bytes to the server's memory, as PostRead reads. With an `imm_data` other than 0 the server's
  /// callback gets it, with the place that was written. Don't touch the bytes before the callback. Returns as PostSend
  /// does. Errors: kOutOfRange.
  std::uint64_t PostWrite(const char* localbuf, std::uint32_t size, int remote_server_id, std::uint64_t remote_offset,
                          bool is_remote_offset, std::uint32_t imm_data) {
    constexpr const char* kCall = "PostWrite";
    Server& server = find(kCall, remote_server_id);
    check_memory(kCall, server, localbuf);
    const verbena::mesh::Window window = window_of(server);
    const std::uint64_t offset = is_remote_offset ? remote_offset : remote_offset - window.memory.address;
    return post(kCall, server, [&](std::uint64_t wr_id) {
      return lane_->write(window, offset, bytes_of(const_cast<char*>(localbuf), size), wr_id, immediate_of(imm_data));
    });
  }

  /// Posts what doorbell_batch_size holds back; polls do so, too. Does nothing for this server itself.
  void FlushPendingSends(int remote_server_id) {
    if (is_self(remote_server_id)) return;
    Server& server = find("FlushPendingSends", remote_server_id);
    lane_->flush(server.peer);
  }
  /// The same for all servers.
  void FlushPendingSends() { connected("FlushPendingSends").flush(); }

  /// Calls back for this side's operations that have completed, and returns for how many. Throws once for an operation
  /// that failed, with its number; the next call continues after it. 0 for this server itself.
  std::uint32_t PollSQ(int remote_server_id) {
    if (is_self(remote_server_id)) return 0;
    Server& server = find("PollSQ", remote_server_id);
    collect(Which::kSends);
    return call_back_sends(server.peer);
  }
  /// The same for all servers; its cost grows with what has completed.
  std::uint32_t PollSQ() {
    (void)connected("PollSQ");
    collect(Which::kSends);
    return call_back_sends({});
  }
  /// Calls back for what a server has sent, or written with an immediate, and returns for how many. Throws once when a
  /// server is lost; a server that leaves in an orderly way is no error. If max_num_sends operations have not been
  /// called back, it first does what PollSQ does. Messages of other servers wait meanwhile, within their credit.
  std::uint32_t PollRQ(int remote_server_id) {
    if (is_self(remote_server_id)) return 0;
    return poll_receives(find("PollRQ", remote_server_id).peer);
  }
  /// The same for all servers; its cost grows with what has arrived.
  std::uint32_t PollRQ() {
    (void)connected("PollRQ");
    return poll_receives({});
  }

  /// The constructor's argument.
  [[nodiscard]] std::uint32_t thread_id() const noexcept { return thread_id_; }
  /// The lane below, for what RDMALib lacks: barriers, atomics, windows. Only the store may poll it. Call this after
  /// `Init` has returned.
  [[nodiscard]] verbena::mesh::Lane& lane() { return connected("lane"); }

 private:
  using Which = verbena::mesh::Which;
  using Kind = verbena::mesh::Completion::Kind;
  struct Server {
    std::uint32_t id = 0;
    unsigned peer = 0;              ///< Its place among all servers, by id.
    std::uint32_t uncollected = 0;  ///< Operations that have not been called back.
    std::vector<char*> reserved{};  ///< Buffers of GetSendBuf that have not been sent.
    std::optional<verbena::mesh::Window> window{};
  };
  struct Inside {
    explicit Inside(unsigned& depth) : depth_(depth) { ++depth_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { --depth_; }
    unsigned& depth_;
  };

  [[nodiscard]] static std::span<std::byte> bytes_of(char* buf, std::size_t size) noexcept {
    return {reinterpret_cast<std::byte*>(buf), size};
  }
  [[nodiscard]] static std::optional<std::uint32_t> immediate_of(std::uint32_t imm_data) noexcept {
    return imm_data == 0 ? std::nullopt : std::optional(imm_data);
  }
  /// Completions that peers, or this side's operations, may have waiting.
  [[nodiscard]] static std::size_t capacity_of(const std::vector<QPEndPoint>& endpoints, std::uint32_t max_num_sends) {
    return std::max<std::size_t>(16, endpoints.size() * 2 * max_num_sends);
  }
  [[noreturn]] static void fail(verbena::Status status, const char* call, const Server& server,
                                std::uint64_t wr_id = NovaError::kNoRequest) {
    std::string sentence = std::string(call) + ", server " + std::to_string(server.id) + ": " + to_string(status);
    // The others have no detail of their own.
    if (status == verbena::Status::kBadArgument || status == verbena::Status::kOutOfRange)
      sentence += std::string(": ") + verbena::error_detail();
    throw NovaError(status, sentence, server.id, wr_id);
  }

  /// Makes the table of servers, in the order of their ids, with this one.
  void enlist(const std::vector<QPEndPoint>& endpoints, std::uint32_t my_server_id, std::uint64_t port) {
    std::vector<const QPEndPoint*> all{nullptr};
    for (const QPEndPoint& one : endpoints) all.push_back(&one);
    const auto id_of = [&](const QPEndPoint* one) { return one == nullptr ? my_server_id : one->server_id; };
    std::ranges::sort(all, {}, id_of);
    if (std::ranges::adjacent_find(all, {}, id_of) != all.end())
      detail::refuse("endpoints must be all servers but this one, each once");
    for (const QPEndPoint* const one : all) {
      const auto peer = static_cast<unsigned>(servers_.size());
      servers_.push_back({.id = id_of(one), .peer = peer});
      servers_.back().reserved.reserve(max_num_sends_);
      terms_.ids.push_back(id_of(one));
      detail::check_number("port + server_id", port + id_of(one), 1, 65535);
      if (one == nullptr) terms_.rank = peer;
      if (one != nullptr && one->thread_id != thread_id_)
        detail::refuse("thread " + std::to_string(thread_id_) + " connects to thread " + std::to_string(thread_id_) +
                       " of other servers, not to thread " + std::to_string(one->thread_id));
      const std::string host = one == nullptr ? "localhost" : one->host.ip;
      terms_.hosts.push_back((host.find(':') == std::string::npos ? host : '[' + host + ']') + ':' +
                             std::to_string(port + id_of(one)));
    }
  }
  [[nodiscard]] verbena::mesh::Lane& connected(const char* call) {
    if (lane_ == nullptr) detail::refuse(std::string(call) + ": call Init first");
    return *lane_;
  }
  [[nodiscard]] bool is_self(int server_id) const noexcept {
    return static_cast<std::uint32_t>(server_id) == servers_[terms_.rank].id;
  }
  [[nodiscard]] Server& find(const char* call, int server_id) {
    (void)connected(call);
    const auto id = static_cast<std::uint32_t>(server_id);
    // Ids are 0 to n - 1 nearly always.
    if (id < servers_.size() && servers_[id].id == id && id != terms_.rank) [[likely]]
      return servers_[id];
    const auto found = std::ranges::lower_bound(servers_, id, {}, &Server::id);
    if (found == servers_.end() || found->id != id || is_self(server_id))
      throw NovaError(verbena::Status::kBadArgument,
                      std::string(call) + ": server " + std::to_string(server_id) + " is not one of the endpoints",
                      server_id);
    return *found;
  }
  static void check_memory(const char* call, const Server& server, const char* localbuf) {
    if (localbuf == nullptr) detail::refuse(std::string(call) + ": localbuf is null");
    if (std::ranges::find(server.reserved, localbuf) != server.reserved.end())
      detail::refuse(std::string(call) + ": localbuf is of GetSendBuf, which is for PostSend");
  }
  /// Where the server's memory is, also after the server has started again.
  [[nodiscard]] const verbena::mesh::Window& window_of(Server& server) {
    if (!server.window) find_window(server, verbena::Deadline::after(timeout_));
    return *server.window;
  }
  void find_window(Server& server, verbena::Deadline deadline) {
    server.window = detail::value_of(lane_->find(server.peer, RdmaCtrl::window_name(thread_id_), deadline), server.id);
  }

  /// Waits until the NICs of all servers have this server's announcement of its memory, so that no server's Init
  /// depends on a poll of this side any more. A READ from each server completes after the announcement.
  void await_told(verbena::Deadline deadline) {
    constexpr const char* kCall = "Init";
    verbena::mesh::Completion one[1];
    (void)lane_->poll(std::span(one).first(0));
    std::byte scratch[1];
    for (Server& server : servers_) {
      if (server.peer == terms_.rank) continue;
      const verbena::Status started = lane_->read(*server.window, 0, scratch, 0);
      if (started != verbena::Status::kOk) fail(started, kCall, server);
      if (lane_->wait(one, deadline, Which::kSends) == 0) fail(verbena::Status::kTimedOut, kCall, server);
      if (one[0].status != verbena::Status::kOk) fail(one[0].status, kCall, server);
    }
  }

  /// Starts an operation, once there is room for it.
  template <class Start>
  std::uint64_t post(const char* call, Server& server, const Start& start) {
    make_room(call, server);
    verbena::Status status = start(next_wr_id_);
    if (status == verbena::Status::kAgain) {
      const auto deadline = verbena::Deadline::after(timeout_);
      for (; status == verbena::Status::kAgain; status = start(next_wr_id_)) turn(deadline, call, server);
    }
    if (status != verbena::Status::kOk) fail(status, call, server);
    ++server.uncollected;
    ++uncollected_;
    return next_wr_id_++;
  }
  /// Calls back until fewer than max_num_sends operations to the server are left. Does nothing within a callback.
  void make_room(const char* call, Server& server) {
    if (depth_ != 0) return;
    if (server.uncollected < max_num_sends_) [[likely]]
      return;
    const auto deadline = verbena::Deadline::after(timeout_);
    for (;;) {
      collect(Which::kSends);
      (void)call_back_sends(sends_.room() == 0 ? std::nullopt : std::optional(server.peer));
      if (server.uncollected < max_num_sends_) return;
      if (deadline.passed()) fail(verbena::Status::kTimedOut, call, server);
      verbena::mesh::Completion one[1];
      if (lane_->wait(one, deadline, Which::kSends) == 1) take(one[0], sends_);
    }
  }
  /// Lets the NIC make progress between two attempts.
  void turn(verbena::Deadline deadline, const char* call, const Server& server) {
    if (collect(Which::kSends) != 0) return;
    if (sends_.room() == 0 && server.uncollected >= max_num_sends_) fail(verbena::Status::kBusy, call, server);
    if (deadline.passed()) fail(verbena::Status::kTimedOut, call, server);
    std::this_thread::yield();
  }
  /// Takes the completions that have come, as far as there is room, and returns how many.
  std::size_t collect(Which which) {
    detail::Waiting& waiting = which == Which::kSends ? sends_ : receives_;
    std::array<verbena::mesh::Completion, 16> batch;
    for (std::size_t all = 0;;) {
      const std::size_t room = std::min(batch.size(), waiting.room());
      const std::size_t count = lane_->poll(std::span(batch).first(room), which);
      for (std::size_t i = 0; i < count; ++i) take(batch[i], waiting);
      all += count;
      if (count < batch.size()) return all;
    }
  }
  void take(const verbena::mesh::Completion& one, detail::Waiting& waiting) {
    if (one.kind == Kind::kJoined) return;
    if (one.kind == Kind::kLeft) {
      for (char* const buf : servers_[one.peer].reserved)
        (void)lane_->cancel(one.peer, bytes_of(buf, terms_.max_msg_size));
      servers_[one.peer].reserved.clear();
      servers_[one.peer].window.reset();
      if (one.status == verbena::Status::kClosed) return;
    }
    waiting.push(one);
  }
  std::uint32_t call_back_sends(std::optional<unsigned> peer) {
    std::uint32_t count = 0;
    for (std::size_t most = sends_.size(); count < most; ++count) {
      const auto one = sends_.take(peer);
      if (!one) break;
      Server& server = servers_[one->peer];
      --server.uncollected;
      --uncollected_;
      if (one->status != verbena::Status::kOk) fail(one->status, "PollSQ", server, one->cookie);
      const ibv_wc_opcode type = one->kind == Kind::kRead    ? IBV_WC_RDMA_READ
                                 : one->kind == Kind::kWrite ? IBV_WC_RDMA_WRITE
                                                             : IBV_WC_SEND;
      call_back(type, one->cookie, server, *one);
    }
    return count;
  }
  std::uint32_t poll_receives(std::optional<unsigned> peer) {
    // Makes room for what callbacks post.
    if (depth_ == 0 && uncollected_ >= max_num_sends_) (void)PollSQ();
    collect(Which::kReceives);
    std::uint32_t count = 0;
    for (std::size_t most = receives_.size(); count < most; ++count) {
      const auto one = receives_.take(peer);
      if (!one) break;
      Server& server = servers_[one->peer];
      if (one->kind == Kind::kLeft) fail(one->status, "PollRQ", server);
      const std::uint64_t number = arrivals_++;
      if (one->kind == Kind::kWritten) {
        call_back(IBV_WC_RECV_RDMA_WITH_IMM, number, server, *one);
        continue;
      }
      struct Release {
        verbena::mesh::Lane& lane;
        const verbena::mesh::Completion& message;
        ~Release() { (void)lane.release(message); }
      } const release{*lane_, *one};
      call_back(IBV_WC_RECV, number, server, *one);
    }
    return count;
  }
  void call_back(ibv_wc_opcode type, std::uint64_t wr_id, const Server& server, const verbena::mesh::Completion& one) {
    const Inside inside(depth_);
    callback_->ProcessRDMAWC(type, wr_id, static_cast<int>(server.id), reinterpret_cast<char*>(one.bytes.data()),
                             one.immediate.value_or(0));
  }

  const std::uint32_t thread_id_;
  const std::uint32_t max_num_sends_;
  const std::span<std::byte> memory_;
  NovaMsgCallback* const callback_;
  detail::Terms terms_;
  std::vector<Server> servers_;  ///< By id, this one too: a server's place is its number in the mesh.
  std::shared_ptr<verbena::mesh::Mesh> mesh_;
  verbena::mesh::Lane* lane_ = nullptr;
  std::chrono::nanoseconds timeout_{};
  detail::Waiting sends_;
  detail::Waiting receives_;
  std::uint64_t next_wr_id_ = 0;
  std::uint64_t arrivals_ = 0;
  std::uint64_t uncollected_ = 0;  ///< The sum over all servers.
  unsigned depth_ = 0;             ///< Nesting depth of callbacks.
};

}  // namespace nova

// NOLINTEND(readability-identifier-naming)
