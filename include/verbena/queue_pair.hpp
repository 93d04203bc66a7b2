/// \file
/// Queue pairs of your own: what is missing, out of order, or not of their type does not compile.
#pragma once

#include <verbena/typed.hpp>
#include <verbena/wait_policy.hpp>

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace verbena::typed {

/// A reliable connection: what is posted arrives once and in order, or the queue pair fails.
struct Rc {};
/// An unreliable connection: SEND and WRITE, which complete once they have left. A message that is lost, has no
/// receive, or is refused by the peer's NIC vanishes silently, and as a whole.
struct Uc {};
/// Rc or Uc.
template <class T>
concept QueuePairType = std::same_as<T, Rc> || std::same_as<T, Uc>;

/// Bytes of a packet.
enum class Mtu : std::uint8_t { k256 = 1, k512 = 2, k1024 = 3, k2048 = 4, k4096 = 5 };

/// Where a queue pair is, as plain numbers, in the byte order of the host: carry it to the peer by whatever you have.
/// It is checked when it comes back.
struct QueuePairEndpoint {
  static constexpr std::uint32_t kMagic = 0x31'50'51'56;  ///< "VQP1" in the memory of a little-endian host.
  std::uint32_t magic = kMagic;                           ///< Tells a peer of another byte order or release.
  std::uint8_t type = 0;                                  ///< 1: Rc; 2: Uc. Both ends the same.
  std::uint8_t nic = 0;                                   ///< 1: the software NIC; 2: a device.
  std::uint8_t network = 0;                               ///< Kind of its GID.
  std::uint8_t mtu = 0;                                   ///< As Mtu. The smaller one of both ends is used.
  std::array<std::uint8_t, 16> gid{};                     ///< Its NIC's.
  std::uint32_t number = 0;                               ///< The queue pair's.
  std::uint32_t psn = 0;                                  ///< First packet sequence number.
  std::uint16_t lid = 0;                                  ///< InfiniBand only.
  std::uint8_t max_reads = 0;  ///< READs and atomics at a time. The smaller one of both ends is used.
  std::uint8_t reserved = 0;   ///< 0
  /// Equal in all fields.
  friend bool operator==(const QueuePairEndpoint&, const QueuePairEndpoint&) = default;
};
static_assert(sizeof(QueuePairEndpoint) == 36 && std::is_trivially_copyable_v<QueuePairEndpoint>);

/// What a message was that a receive took.
struct Arrival {
  rdma::Message::Kind kind =
      rdma::Message::Kind::kSent;            ///< kWritten: a WRITE with immediate; the segment is as it was.
  std::optional<std::uint32_t> immediate{};  ///< The number that the sender gave with it.
  std::size_t bytes = 0;                     ///< In the segment, or written.
};

template <QueuePairType Type>
class Prepared;
template <QueuePairType Type>
class Connecting;
template <QueuePairType Type>
class Ready;

/// What the parts of this API see of each other. Not for users.
namespace detail {

class QueuePairState;

struct QueuePairSettings {
  std::shared_ptr<node::Node> node{};
  bool is_reliable = true;
  std::uint32_t send_depth = 128;
  std::uint32_t receive_depth = 128;
  std::uint32_t max_sge = 4;
  std::uint32_t max_inline = 64;
  rdma::Access access = rdma::Access::kAll;
  std::optional<Mtu> mtu{};
  std::optional<std::uint32_t> psn{};
  std::uint32_t traffic_class = 0;
  std::uint32_t max_reads = 255;
  std::uint32_t ack_timeout = 14;
  std::uint32_t retry_count = 6;
  std::uint32_t rnr_retry = 7;
  std::uint32_t min_rnr_timer = 12;
  std::chrono::milliseconds wait_timeout{5000};
  WaitPolicy wait = WaitPolicy::kAdaptive;
};

/// A part of an operation: bytes, and the claim to them; without one nobody guards them.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t lkey = 0;
  const Claim* claim = nullptr;
};

enum class Verb : std::uint8_t {
  kWrite,
  kWriteWithImmediate,
  kSend,
  kSendWithImmediate,
  kRead,
  kFetchAdd,
  kCompareSwap
};

/// An operation for a send queue.
struct Request {
  const char* call;
  Verb verb;
  std::span<const Piece> pieces{};
  rdma::Remote remote{};
  std::uint32_t immediate = 0;
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
};

/// The owner of a queue pair, in whatever state it is. Move-only.
class QueuePairHandle {
 public:
  QueuePairHandle() noexcept = default;
  QueuePairHandle(QueuePairHandle&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  QueuePairHandle& operator=(QueuePairHandle&& other) noexcept {
    QueuePairHandle(std::move(other)).swap(*this);
    return *this;
  }
  ~QueuePairHandle() { close(); }

  [[nodiscard]] static Result<QueuePairHandle> make(const QueuePairSettings& settings);
  [[nodiscard]] QueuePairEndpoint describe() const noexcept;
  /// Checks what the peer is said to be, and keeps it.
  [[nodiscard]] Result<void> meet(const QueuePairEndpoint& peer);
  /// One attempt, or all of them: kAgain after one with Deadline::now().
  [[nodiscard]] Result<void> connect(Deadline deadline);
  [[nodiscard]] Result<void> import(const rdma::Window& window, const std::optional<Deadline>& deadline);
  void close() noexcept;

  [[nodiscard]] Started start(const Request& request) noexcept;
  [[nodiscard]] Started start_receive(const char* call, std::span<const Piece> pieces) noexcept;
  [[nodiscard]] Status post_unsignaled(const Request& request) noexcept;
  [[nodiscard]] Status failure() const noexcept;
  [[nodiscard]] std::size_t max_sge() const noexcept;
  [[nodiscard]] std::size_t max_inline() const noexcept;
  [[nodiscard]] std::size_t room() const noexcept;
  [[nodiscard]] std::size_t quarantined() const noexcept;
  [[nodiscard]] Status settle(Deadline deadline) noexcept;
  [[nodiscard]] Result<void> check_batch(std::size_t capacity) const;
  [[nodiscard]] QueuePairState* state() const noexcept { return state_; }

 private:
  void swap(QueuePairHandle& other) noexcept { std::swap(state_, other.state_); }
  QueuePairState* state_ = nullptr;
};

/// The work requests of a batch, and of which queue pair they are, which lasts as long.
class BatchRequests {
 public:
  BatchRequests(QueuePairState* state, std::size_t capacity);
  BatchRequests(const BatchRequests&) = delete;
  BatchRequests& operator=(const BatchRequests&) = delete;
  ~BatchRequests();

  [[nodiscard]] Status add(const Request& request) noexcept;
  void remove_last() noexcept;
  [[nodiscard]] Started post(const char* call) noexcept;

 private:
  struct List;
  QueuePairState* const state_;
  const std::unique_ptr<List> list_;
};

template <class T>
[[nodiscard]] Piece piece_of(const Elements<T>& elements) noexcept {
  const auto bytes = std::as_bytes(elements.unsafe_span());
  const Claim& claim = Inside::claim(elements);
  return {const_cast<std::byte*>(bytes.data()), bytes.size(), claim.lkey(), &claim};
}
/// The pieces of a segment, or one for each of several.
template <class Part>
[[nodiscard]] constexpr auto pieces_of(const Part& part) noexcept {
  if constexpr (kIsSegment<Part>) {
    return std::array{piece_of(part)};
  } else {
    return std::apply([](const auto&... each) { return std::array{piece_of(each)...}; }, part);
  }
}

template <class T>
struct SegmentTraits {};
template <Element T>
struct SegmentTraits<Segment<T>> {
  using Value = T;
  static constexpr bool kIsWritable = true;
};
template <Element T>
struct SegmentTraits<ConstSegment<T>> {
  using Value = T;
  static constexpr bool kIsWritable = false;
};
template <class T>
concept AnySegment = requires { typename SegmentTraits<T>::Value; };
template <class T>
concept WritableSegment = AnySegment<T> && SegmentTraits<T>::kIsWritable;

template <class T>
struct ListTraits {
  static constexpr bool kAllSegments = false;
  static constexpr bool kAllWritable = false;
};
template <class... Each>
  requires(sizeof...(Each) != 0)
struct ListTraits<std::tuple<Each...>> {
  static constexpr bool kAllSegments = (AnySegment<Each> && ...);
  static constexpr bool kAllWritable = (WritableSegment<Each> && ...);
};
template <class Each, std::size_t kCount>
  requires(kCount != 0)
struct ListTraits<std::array<Each, kCount>> {
  using Value = typename SegmentTraits<Each>::Value;
  static constexpr bool kAllSegments = AnySegment<Each>;
  static constexpr bool kAllWritable = WritableSegment<Each>;
};
template <AnySegment T>
struct ListTraits<T> {
  using Value = typename SegmentTraits<T>::Value;
  static constexpr bool kAllSegments = true;
  static constexpr bool kAllWritable = WritableSegment<T>;
};

}  // namespace detail

/// What is gathered: a segment, or an array or tuple of segments, one after the other.
template <class T>
concept Source = detail::ListTraits<T>::kAllSegments;
/// What is scattered to: the same of segments that nobody else has.
template <class T>
concept Target = detail::ListTraits<T>::kAllWritable;
/// The element type of a segment or an array of segments.
template <class T>
using ElementOf = typename detail::ListTraits<T>::Value;

/// How a receive ended, with what arrived, and its segments.
template <Target Part>
struct [[nodiscard]] ReceiveOutcome {
  Status status = Status::kOk;  ///< kOk or an error.
  Arrival arrival{};            ///< kOk: the message.
  Part segment{};               ///< The segments that the receive was posted with; empty if it is not complete.
};

/// A receive that was posted, and the segments that it has until a message is in them. Destroyed before, it stays
/// posted, and takes a message; its segments are in quarantine meanwhile. Move-only. \thread as Operation
template <Target Part>
class [[nodiscard]] ReceiveOperation {
 public:
  /// As Operation::is_under_way.
  [[nodiscard]] bool is_under_way() const noexcept { return operation_.is_under_way(); }
  /// As Operation::status.
  [[nodiscard]] Status status() const noexcept { return operation_.status(); }
  /// As Operation::poll.
  [[nodiscard]] bool poll() noexcept { return operation_.poll(); }
  /// As Operation::wait.
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return operation_.wait(deadline); }
  /// As Operation::take.
  [[nodiscard]] std::expected<Part, Status> take() noexcept { return operation_.take(); }
  /// What has arrived. kAgain: nothing yet; or why nothing will; kBadArgument: it is no whole number of elements.
  [[nodiscard]] std::expected<Arrival, Status> arrival() const noexcept {
    if (status() != Status::kOk) return std::unexpected(status());
    const detail::End& end = detail::Inside::started(operation_).end();
    Arrival arrival{.bytes = end.value};
    if (end.arrived != detail::End::Arrived::kSent) arrival.immediate = end.immediate;
    if (end.arrived == detail::End::Arrived::kWritten) arrival.kind = rdma::Message::Kind::kWritten;
    if constexpr (requires { typename ElementOf<Part>; }) {
      if (arrival.kind == rdma::Message::Kind::kSent && arrival.bytes % sizeof(ElementOf<Part>) != 0)
        return std::unexpected(Status::kBadArgument);
    }
    return arrival;
  }
  /// Waits and takes. Past the deadline the segments are in quarantine, and the outcome has none.
  [[nodiscard]] ReceiveOutcome<Part> finish(std::optional<Deadline> deadline = {}) && noexcept {
    const Status waited = wait(deadline);
    const auto arrived = arrival();
    ReceiveOutcome<Part> outcome{.status = arrived ? Status::kOk : (waited != Status::kOk ? waited : arrived.error())};
    if (arrived) outcome.arrival = *arrived;
    outcome.segment = std::move(std::move(operation_).finish(Deadline::now()).segment);
    return outcome;
  }

 private:
  template <QueuePairType Type>
  friend class Prepared;
  template <QueuePairType Type>
  friend class Ready;
  friend struct detail::Inside;
  explicit ReceiveOperation(Operation<Part>&& operation) noexcept : operation_(std::move(operation)) {}

  Operation<Part> operation_;
};

/// Work requests that are made once, and posted again and again with one doorbell. It owns their segments; while it is
/// under way it has them to itself, as an operation does, so two batches in turn keep a device busy. Destroyed before
/// it is complete, its segments are in quarantine. Move-only. \thread the queue pair's
template <QueuePairType Type, Element T>
class [[nodiscard]] Batch {
 public:
  /// Leaves an empty batch behind.
  Batch(Batch&&) noexcept = default;
  /// First does what the destructor does.
  Batch& operator=(Batch&& other) noexcept {
    if (this == &other) return *this;
    leave();
    body_ = std::move(other.body_);
    started_ = std::move(other.started_);
    return *this;
  }
  ~Batch() { leave(); }  ///< Puts its segments in quarantine if it is under way.

  /// Appends a WRITE of all of `from` to the front of `to`. The caller keeps `from` where it is refused, with what the
  /// operation would be refused with; kBusy: the batch is under way; kLimit: its capacity is used. \alloc none
  [[nodiscard]] Status add_write(Segment<T>&& from, const RemoteSegment<T>& to) noexcept {
    return add(std::move(from),
               {.call = "typed::Batch::add_write", .verb = detail::Verb::kWrite, .remote = to.remote()});
  }
  /// The same, and a receive of the peer's takes `immediate`.
  [[nodiscard]] Status add_write_with_immediate(Segment<T>&& from, const RemoteSegment<T>& to,
                                                std::uint32_t immediate) noexcept {
    return add(std::move(from), {.call = "typed::Batch::add_write_with_immediate",
                                 .verb = detail::Verb::kWriteWithImmediate,
                                 .remote = to.remote(),
                                 .immediate = immediate});
  }
  /// Appends a SEND of all of `from`.
  [[nodiscard]] Status add_send(Segment<T>&& from) noexcept {
    return add(std::move(from), {.call = "typed::Batch::add_send", .verb = detail::Verb::kSend});
  }
  /// Appends a READ of to.size() elements to the front of `to`.
  [[nodiscard]] Status add_read(Segment<T>&& to, const RemoteSegment<const T>& from) noexcept
    requires std::same_as<Type, Rc>
  {
    return add(std::move(to), {.call = "typed::Batch::add_read", .verb = detail::Verb::kRead, .remote = from.remote()});
  }

  /// Number of requests.
  [[nodiscard]] std::size_t size() const noexcept { return body_ != nullptr ? body_->segments.size() : 0; }
  /// Posts all of them. kBusy: it is under way; kAgain: there is no room; kBadArgument: there are none; or why the
  /// queue pair failed. \alloc none
  [[nodiscard]] Status post() noexcept {
    constexpr const char* kCall = "typed::Batch::post";
    if (is_under_way() && !started_.poll()) return refuse_busy();
    if (body_ == nullptr) return Status::kBadArgument;
    detail::Started posted = body_->requests.post(kCall);
    if (!posted.is_under_way()) return posted.status();
    started_ = std::move(posted);
    return Status::kOk;
  }
  /// Whether the end of the last post was not seen yet.
  [[nodiscard]] bool is_under_way() const noexcept { return started_.is_under_way(); }
  /// The last post's: kAgain while it is under way; then kOk, or the status of the first request that failed.
  [[nodiscard]] Status status() const noexcept { return started_.status(); }
  /// As Operation::poll.
  [[nodiscard]] bool poll() noexcept { return started_.poll(); }
  /// As Operation::wait.
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return started_.wait(deadline); }
  /// Calls `body` with the elements of request `at`, to read and write. kBusy: it is under way; kOutOfRange.
  template <std::invocable<std::span<T>> Body>
    requires std::is_void_v<std::invoke_result_t<Body, std::span<T>>>
  [[nodiscard]] Status use(std::size_t at, Body&& body) {
    if (is_under_way()) return refuse_busy();
    if (at >= size()) return detail::refuse_part("typed::Batch::use", at, 1, size());
    body_->segments[at].use(std::forward<Body>(body));
    return Status::kOk;
  }
  /// Takes the last request out, and returns its segment. kBusy: it is under way; kNotFound: there is none.
  [[nodiscard]] std::expected<Segment<T>, Status> take_last() noexcept {
    if (is_under_way()) return std::unexpected(refuse_busy());
    if (size() == 0) return std::unexpected(Status::kNotFound);
    body_->requests.remove_last();
    Segment<T> last = std::move(body_->segments.back());
    body_->segments.pop_back();
    return last;
  }

 private:
  friend class Ready<Type>;
  struct Body final : detail::Kept {
    Body(detail::QueuePairState* state, std::size_t capacity) : requests(state, capacity) {
      segments.reserve(capacity);
    }
    std::vector<Segment<T>> segments;
    detail::BatchRequests requests;
  };
  explicit Batch(std::unique_ptr<Body> body) noexcept : body_(std::move(body)), started_(Status::kOk) {}

  [[nodiscard]] static Status refuse_busy() noexcept { return Status::kBusy; }
  [[nodiscard]] Status add(Segment<T>&& segment, detail::Request request) noexcept {
    if (is_under_way()) return refuse_busy();
    if (body_ == nullptr) return Status::kBadArgument;
    const auto pieces = detail::pieces_of(segment);
    request.pieces = pieces;
    const Status added = body_->requests.add(request);
    if (added == Status::kOk) body_->segments.push_back(std::move(segment));
    return added;
  }
  void leave() noexcept {
    if (!is_under_way()) return;
    started_.keep(std::move(body_));
    started_.abandon();
  }

  std::unique_ptr<Body> body_;
  detail::Started started_;
};

/// Makes queue pairs of a type. Only the node is needed (`on`); the rest has defaults. A setting out of its range is
/// refused by `prepare`. The port and the GID are those of the node's NIC (Transport::gid_index).
template <QueuePairType Type, bool kHasNode = false>
class QueuePairBuilder {
 public:
  /// With defaults.
  QueuePairBuilder() noexcept
    requires(!kHasNode)
  {
    settings_.is_reliable = std::same_as<Type, Rc>;
    if (!settings_.is_reliable) settings_.access = rdma::Access::kWrite;
  }

  /// The node whose NIC and memory it uses, and which lasts as long.
  [[nodiscard]] QueuePairBuilder<Type, true> on(const rdma::Node& node) const
    requires(!kHasNode)
  {
    detail::QueuePairSettings settings = settings_;
    settings.node = detail::Inside::node(node);
    return QueuePairBuilder<Type, true>(std::move(settings));
  }

  /// Work requests that can be under way. 1 to 16000, and what the NIC has. Default 128.
  QueuePairBuilder& send_depth(std::uint32_t requests) noexcept { return set(settings_.send_depth, requests); }
  /// Receives that can be posted. 1 to 16000, and what the NIC has. Default 128.
  QueuePairBuilder& receive_depth(std::uint32_t receives) noexcept { return set(settings_.receive_depth, receives); }
  /// Segments of one operation. 1 to what the NIC has. Default 4.
  QueuePairBuilder& max_sge(std::uint32_t segments) noexcept { return set(settings_.max_sge, segments); }
  /// Bytes up to which a SEND or WRITE is copied into its work request. 0 to what the NIC has. Default 64.
  QueuePairBuilder& max_inline(std::uint32_t bytes) noexcept { return set(settings_.max_inline, bytes); }
  /// What the peer may do here, where the memory allows it too. Default: all that the type has.
  QueuePairBuilder& access(rdma::Access rights) noexcept { return set(settings_.access, rights); }
  /// Largest packet. Default: the port's.
  QueuePairBuilder& mtu(Mtu bytes) noexcept { return set(settings_.mtu, bytes); }
  /// Number of the first packet, 24 bits. Default: random.
  QueuePairBuilder& psn(std::uint32_t number) noexcept { return set(settings_.psn, number); }
  /// Traffic class (DSCP and ECN) of its packets. 0 to 255. Default 0.
  QueuePairBuilder& traffic_class(std::uint32_t number) noexcept { return set(settings_.traffic_class, number); }
  /// Deadline of a wait without one. 1 ms to 12 days. Default 5 s.
  QueuePairBuilder& wait_timeout(std::chrono::milliseconds time) noexcept { return set(settings_.wait_timeout, time); }
  /// How a wait waits.
  QueuePairBuilder& wait_policy(WaitPolicy policy) noexcept { return set(settings_.wait, policy); }
  /// READs and atomics at a time, each way. 0 to 255; the NIC may have less. Default: the NIC's.
  QueuePairBuilder& max_reads(std::uint32_t reads) noexcept
    requires std::same_as<Type, Rc>
  {
    return set(settings_.max_reads, reads);
  }
  /// 4.096 us * 2^exponent: after this time without an answer a packet is sent again. 0: never; 1 to 31. Default 14.
  QueuePairBuilder& ack_timeout(std::uint32_t exponent) noexcept
    requires std::same_as<Type, Rc>
  {
    return set(settings_.ack_timeout, exponent);
  }
  /// Times that it is sent again. 0 to 7. Default 6.
  QueuePairBuilder& retry_count(std::uint32_t times) noexcept
    requires std::same_as<Type, Rc>
  {
    return set(settings_.retry_count, times);
  }
  /// Times that a message is sent again for which the peer has no receive. 0 to 6; 7: without end. Default 7.
  QueuePairBuilder& rnr_retry(std::uint32_t times) noexcept
    requires std::same_as<Type, Rc>
  {
    return set(settings_.rnr_retry, times);
  }
  /// Code of the time that the peer waits before that (ibv_modify_qp(3)). 0 to 31. Default 12, which is 0.64 ms.
  QueuePairBuilder& min_rnr_timer(std::uint32_t code) noexcept
    requires std::same_as<Type, Rc>
  {
    return set(settings_.min_rnr_timer, code);
  }

  /// Makes it. Errors: kBadArgument (a setting), kLimit, kNoMemory, kDevice. \thread setup  \alloc setup
  [[nodiscard]] Result<Prepared<Type>> prepare() const
    requires kHasNode;

 private:
  template <QueuePairType OtherType, bool kOtherHasNode>
  friend class QueuePairBuilder;
  explicit QueuePairBuilder(detail::QueuePairSettings&& settings) noexcept : settings_(std::move(settings)) {}
  template <class Value, class Given>
  QueuePairBuilder& set(Value& setting, Given given) noexcept {
    setting = given;
    return *this;
  }

  detail::QueuePairSettings settings_;
};

/// What queue pairs can do from the start: receive, and say how they are.
class QueuePairBase {
 public:
  /// Why it failed; kOk while it has not. What fails gives everything back: the operation that failed with the reason,
  /// and all others with kFlushed.
  [[nodiscard]] Status failure() const noexcept { return pair_.failure(); }
  /// Segments that an operation can have.
  [[nodiscard]] std::size_t max_sge() const noexcept { return pair_.max_sge(); }
  /// Operations that were destroyed before their end, and are not complete as far as was looked.
  [[nodiscard]] std::size_t quarantined() const noexcept { return pair_.quarantined(); }

 protected:
  QueuePairBase() noexcept = default;
  /// Takes the queue pair over.
  explicit QueuePairBase(detail::QueuePairHandle&& pair) noexcept : pair_(std::move(pair)) {}
  /// Leaves no queue pair behind.
  QueuePairBase(QueuePairBase&&) noexcept = default;
  /// The same; the queue pair that this had ends.
  QueuePairBase& operator=(QueuePairBase&&) noexcept = default;
  ~QueuePairBase() = default;  ///< Ends the queue pair.

  /// Posts a receive, in any state that takes one.
  template <class Part>
  [[nodiscard]] Operation<Part> receive_into(const char* call, Part&& to) noexcept {
    const auto pieces = detail::pieces_of(to);
    detail::Started started = pair_.start_receive(call, pieces);
    return detail::Inside::operation<Operation<Part>>(std::move(started), std::move(to));
  }

  detail::QueuePairHandle pair_;  ///< Its only member.
};

/// A queue pair that knows no peer yet: receives can be posted, so that the peer's first message finds one. Move-only.
/// \thread setup, one at a time
template <QueuePairType Type>
class [[nodiscard]] Prepared : public QueuePairBase {
 public:
  /// What the peer needs. \alloc none
  [[nodiscard]] QueuePairEndpoint describe() const noexcept { return pair_.describe(); }
  /// As Ready's. Its end is seen once the queue pair is ready: a wait before is kAgain.
  template <Target Part>
  [[nodiscard]] ReceiveOperation<Part> post_receive(Part&& to) noexcept {
    return ReceiveOperation<Part>(this->receive_into("typed::Prepared::post_receive", std::move(to)));
  }
  /// Begins to connect to the peer, in steps, for who has several to connect in one thread. Refused, and this is
  /// prepared still: kProtocol (no endpoint of this release, or changed on its way), kRejected (of another type, or of
  /// another kind of NIC or network).
  [[nodiscard]] Result<Connecting<Type>> begin(const QueuePairEndpoint& peer) && {
    if (auto met = pair_.meet(peer); !met) return std::unexpected(met.error());
    return Connecting<Type>(std::move(pair_));
  }
  /// Connects, while the peer does the same within the deadline. Errors besides: those of Connecting::finish.
  [[nodiscard]] Result<Ready<Type>> connect(const QueuePairEndpoint& peer, Deadline deadline) && {
    auto begun = std::move(*this).begin(peer);
    if (!begun) return std::unexpected(begun.error());
    return std::move(*begun).finish(deadline);
  }

 private:
  template <QueuePairType OtherType, bool kOtherHasNode>
  friend class QueuePairBuilder;
  explicit Prepared(detail::QueuePairHandle&& pair) noexcept : QueuePairBase(std::move(pair)) {}
};

/// A queue pair on its way to its peer. Move-only. \thread setup, one at a time
template <QueuePairType Type>
class [[nodiscard]] Connecting : public QueuePairBase {
 public:
  /// Goes on without waiting. kOk: `finish` will not wait; kAgain: the peer has not done its part; or as `finish`.
  [[nodiscard]] Status step() noexcept {
    const auto gone = pair_.connect(Deadline::now());
    return gone ? Status::kOk : gone.error().status();
  }
  /// Until it is ready. Errors: kPeerLost, kOtherHost, kOtherNamespace, kNotAllowed, kTimedOut, kDevice. The queue pair
  /// is gone then, and receives that were posted are complete with kClosed.
  [[nodiscard]] Result<Ready<Type>> finish(Deadline deadline) && {
    detail::QueuePairHandle pair = std::move(pair_);
    if (auto connected = pair.connect(deadline); !connected) return std::unexpected(connected.error());
    return Ready<Type>(std::move(pair));
  }

 private:
  friend class Prepared<Type>;
  explicit Connecting(detail::QueuePairHandle&& pair) noexcept : QueuePairBase(std::move(pair)) {}
};

/// A queue pair that is ready to send. It is no sign that the peer is: what is sent to a peer that is not ready yet
/// waits on Rc, and is lost on Uc, so tell each other. Destroyed in any order with regions, segments, operations,
/// batches and the node: what is under way is complete then, with kClosed. Move-only.
///
/// Operations take segments, or std::array or std::tuple of segments, up to max_sge of them, whose elements follow one
/// another in the message; and give them back when complete. One that is refused is complete at once: kAgain (no room:
/// take the end of some), kBadArgument (an empty segment; more than max_sge; a target that is shorter), kOutOfRange,
/// kNotFound or kRemoteAccess (the target is not inside a window that was opened, or lacks the right), kLocalAccess
/// (memory of another node), kTooLong, kBusy (another thread uses the queue pair), or why the queue pair failed.
///
/// \thread one at a time: a second one gets kBusy. Operations may be destroyed by any.  \alloc none, except where said
template <QueuePairType Type>
class [[nodiscard]] Ready : public QueuePairBase {
 public:
  /// None: every call is kClosed.
  Ready() noexcept = default;

  /// Bytes up to which a SEND or WRITE leaves from its work request.
  [[nodiscard]] std::size_t max_inline() const noexcept { return pair_.max_inline(); }
  /// Operations for which there is room in the send queue, as far as was looked.
  [[nodiscard]] std::size_t room() const noexcept { return pair_.room(); }
  /// Ends it: the NIC uses no memory for it any more, and what is under way is complete with kClosed. A message that
  /// the peer did not acknowledge may be lost: wait for it first.
  void close() noexcept { pair_.close(); }
  /// Takes in what is complete until nothing is in quarantine; Deadline::now() does not wait. kTimedOut: something is.
  [[nodiscard]] Status settle(Deadline deadline) noexcept { return pair_.settle(deadline); }

  /// Makes a window of the peer usable, up to 64 of them: all of its whole elements. Errors: kLimit, kPeerLost,
  /// kNotAllowed, kProtocol, kOutOfRange, kTimedOut; those of RemoteSegment::of. \thread setup  \alloc setup
  template <class T>
  [[nodiscard]] Result<RemoteSegment<T>> open(const rdma::Window& window, std::optional<Deadline> deadline = {}) {
    auto remote = RemoteSegment<T>::of(window);
    if (!remote) return std::unexpected(Error(remote.error(), "typed::Ready::open", 0, error_detail()));
    if (auto imported = pair_.import(window, deadline); !imported) return std::unexpected(imported.error());
    return *remote;
  }

  /// Writes all of `from` to the front of `to`.
  template <Source Part>
  [[nodiscard]] Operation<Part> post_write(Part from, const RemoteSegment<ElementOf<Part>>& to) noexcept {
    return start(std::move(from),
                 {.call = "typed::Ready::post_write", .verb = detail::Verb::kWrite, .remote = to.remote()});
  }
  /// The same, and a receive of the peer's takes `immediate`.
  template <Source Part>
  [[nodiscard]] Operation<Part> post_write_with_immediate(Part from, const RemoteSegment<ElementOf<Part>>& to,
                                                          std::uint32_t immediate) noexcept {
    return start(std::move(from), {.call = "typed::Ready::post_write_with_immediate",
                                   .verb = detail::Verb::kWriteWithImmediate,
                                   .remote = to.remote(),
                                   .immediate = immediate});
  }
  /// Sends all of `from` into a receive of the peer's.
  template <Source Part>
  [[nodiscard]] Operation<Part> post_send(Part from) noexcept {
    return start(std::move(from), {.call = "typed::Ready::post_send", .verb = detail::Verb::kSend});
  }
  /// The same, with a number for the receiver.
  template <Source Part>
  [[nodiscard]] Operation<Part> post_send_with_immediate(Part from, std::uint32_t immediate) noexcept {
    return start(std::move(from), {.call = "typed::Ready::post_send_with_immediate",
                                   .verb = detail::Verb::kSendWithImmediate,
                                   .immediate = immediate});
  }
  /// Takes one message, to the front of `to`.
  template <Target Part>
  [[nodiscard]] ReceiveOperation<Part> post_receive(Part to) noexcept {
    return ReceiveOperation<Part>(this->receive_into("typed::Ready::post_receive", std::move(to)));
  }
  /// Reads as many elements as `to` has, from the front of `from`.
  template <Target Part>
    requires std::same_as<Type, Rc>
  [[nodiscard]] Operation<Part> post_read(Part to, const RemoteSegment<const ElementOf<Part>>& from) noexcept {
    return start(std::move(to),
                 {.call = "typed::Ready::post_read", .verb = detail::Verb::kRead, .remote = from.remote()});
  }
  /// Adds `delta` to the first element of `word`. kUnsupported: the NIC has none.
  template <std::same_as<std::uint64_t> T>
    requires std::same_as<Type, Rc>
  [[nodiscard]] AtomicOperation post_fetch_add(const RemoteSegment<T>& word, std::uint64_t delta) noexcept {
    return start_atomic({.call = "typed::Ready::post_fetch_add",
                         .verb = detail::Verb::kFetchAdd,
                         .remote = word.remote(),
                         .operand = delta});
  }
  /// Sets the first element of `word` to `desired` if it is `expected`. kUnsupported: the NIC has none.
  template <std::same_as<std::uint64_t> T>
    requires std::same_as<Type, Rc>
  [[nodiscard]] AtomicOperation post_compare_swap(const RemoteSegment<T>& word, std::uint64_t expected,
                                                  std::uint64_t desired) noexcept {
    return start_atomic({.call = "typed::Ready::post_compare_swap",
                         .verb = detail::Verb::kCompareSwap,
                         .remote = word.remote(),
                         .operand = expected,
                         .swap = desired});
  }

  /// An empty batch for up to `capacity` requests, at most the send depth. Errors: kBadArgument, kClosed, kNoMemory.
  /// \thread setup  \alloc setup
  template <Element T>
  [[nodiscard]] Result<Batch<Type, T>> batch(std::size_t capacity) {
    using Made = Batch<Type, T>;
    if (auto checked = pair_.check_batch(capacity); !checked) return std::unexpected(checked.error());
    std::unique_ptr<typename Made::Body> body;
    try {
      body = std::make_unique<typename Made::Body>(pair_.state(), capacity);
    } catch (const std::bad_alloc&) {
      return std::unexpected(Error(Status::kNoMemory, "typed::Ready::batch", 0, "no memory for the batch"));
    }
    return Made(std::move(body));
  }

  /// Posts without a completion, and without a check of memory or window: keep `from` alive and unchanged until an
  /// operation that was posted later is complete. No segment changes hands.
  template <Element T>
  [[nodiscard]] Status unsafe_post_write(const Elements<T>& from,
                                         const std::type_identity_t<RemoteSegment<T>>& to) noexcept {
    const std::array pieces{unguarded(from)};
    return pair_.post_unsignaled({.call = "typed::Ready::unsafe_post_write",
                                  .verb = detail::Verb::kWrite,
                                  .pieces = pieces,
                                  .remote = to.remote()});
  }
  /// The same for a SEND.
  template <Element T>
  [[nodiscard]] Status unsafe_post_send(const Elements<T>& from) noexcept {
    const std::array pieces{unguarded(from)};
    return pair_.post_unsignaled(
        {.call = "typed::Ready::unsafe_post_send", .verb = detail::Verb::kSend, .pieces = pieces});
  }
  /// The same for a READ: leave `to` alone until an operation that was posted later is complete.
  template <Element T>
    requires std::same_as<Type, Rc>
  [[nodiscard]] Status unsafe_post_read(Segment<T>& to,
                                        const std::type_identity_t<RemoteSegment<const T>>& from) noexcept {
    const std::array pieces{unguarded(to)};
    return pair_.post_unsignaled({.call = "typed::Ready::unsafe_post_read",
                                  .verb = detail::Verb::kRead,
                                  .pieces = pieces,
                                  .remote = from.remote()});
  }

 private:
  friend class Connecting<Type>;
  explicit Ready(detail::QueuePairHandle&& pair) noexcept : QueuePairBase(std::move(pair)) {}

  template <class Part>
  [[nodiscard]] Operation<Part> start(Part&& part, detail::Request request) noexcept {
    const auto pieces = detail::pieces_of(part);
    request.pieces = pieces;
    detail::Started started = pair_.start(request);
    return detail::Inside::operation<Operation<Part>>(std::move(started), std::move(part));
  }
  [[nodiscard]] AtomicOperation start_atomic(const detail::Request& request) noexcept {
    return detail::Inside::operation<AtomicOperation>(pair_.start(request));
  }
  template <class T>
  [[nodiscard]] static detail::Piece unguarded(const Elements<T>& elements) noexcept {
    detail::Piece piece = detail::piece_of(elements);
    piece.claim = nullptr;
    return piece;
  }
};

template <QueuePairType Type, bool kHasNode>
Result<Prepared<Type>> QueuePairBuilder<Type, kHasNode>::prepare() const
  requires kHasNode
{
  auto made = detail::QueuePairHandle::make(settings_);
  if (!made) return std::unexpected(made.error());
  return Prepared<Type>(std::move(*made));
}

}  // namespace verbena::typed

#pragma GCC visibility pop
