#include "programs/perf_end.hpp"

#include "base/error.hpp"
#include "base/ticks.hpp"
#include "nic/verbs.hpp"
#include "programs/line.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace verbena::programs {

using perf_wire::LinkHello;
using perf_wire::RunHello;

namespace {

/// A client that is slow, or stuck, does not keep a server from the next one for ever.
constexpr std::chrono::hours kLongestRun{1};
/// Without a sign of the peer.
constexpr std::chrono::milliseconds kProbeAfter{100};
constexpr std::chrono::milliseconds kByeTimeout{1000};
/// As the latency tests of others: this is a measurement, and its cpus have nothing else to do.
constexpr std::chrono::seconds kBusySpin{10};

template <class Hello>
[[nodiscard]] std::span<const std::byte> bytes_of(const Hello& hello) noexcept {
  return std::as_bytes(std::span(&hello, 1));
}

[[nodiscard]] constexpr std::uint64_t up_to_units(std::uint64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

}  // namespace

Result<PerfDevice> PerfDevice::open(const link::FabricOptions& options, Deadline deadline) {
  PerfDevice device;
  VERBENA_ASSIGN(device.fabric, link::Fabric::open(options, deadline));
  VERBENA_ASSIGN(ibv_pd * pd, device.nic().alloc_pd());
  device.pd = nic::Pd(device.nic(), pd);
  return device;
}

std::string PerfDevice::path() const {
  const nic::DeviceFacts* facts = nic::facts_of(nic());
  if (facts == nullptr) return fabric->reason();
  return fmt::format("{}, MTU {}, inline {} B", fabric->reason(), 128U << facts->mtu, nic().limits().max_inline);
}

// --- setup

PerfEnd::PerfEnd(PerfDevice& device, const RunHello& run, PerfRole role, std::chrono::milliseconds timeout)
    : device_(device),
      run_(run),
      role_(role),
      timeout_ticks_(ticks_in(timeout)),
      end_(role == PerfRole::kServer ? Deadline::after(kLongestRun) : Deadline::never()) {}

Result<std::unique_ptr<PerfEnd>> PerfEnd::create(PerfDevice& device, const RunHello& run, PerfRole role,
                                                 std::chrono::milliseconds timeout) {
  std::unique_ptr<PerfEnd> made(new PerfEnd(device, run, role, timeout));
  VERBENA_TRY(made->create());
  return made;
}

Result<void> PerfEnd::create() {
  // A server whose memory is used sleeps meanwhile.
  const bool is_busy = role_ == PerfRole::kClient || keeps_both_busy(run_.test);
  const std::chrono::nanoseconds spin = is_busy ? kBusySpin : std::chrono::nanoseconds{0};
  VERBENA_ASSIGN(loop_, engine::CompletionLoop::create(device_.nic(), {.max_connections = 2, .spin = spin}));
  constexpr int kRemote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  VERBENA_TRY(own_.open(device_.nic(), device_.pd.get(),
                        {.size_bytes = run_.bytes, .prefault_threads = 1, .name = "perf-own"}, {},
                        IBV_ACCESS_LOCAL_WRITE));
  VERBENA_ASSIGN(channel_, message::Channel::create(*loop_, device_.pd.get(), channel_options(), *this));
  if (!uses_link(run_.test)) return {};
  VERBENA_TRY(shared_.open(
      device_.nic(), device_.pd.get(),
      {.size_bytes = run_.bytes, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "perf-shared"}, {},
      IBV_ACCESS_LOCAL_WRITE | kRemote));
  VERBENA_ASSIGN(link_, remote::Link::create(*loop_, device_.pd.get(), {.bounce_bytes = 64}));
  return {};
}

message::Options PerfEnd::channel_options() const noexcept {
  message::Options options{.eager_bytes = 64};
  if (run_.test == PerfTest::kMessage) options.eager_bytes = static_cast<std::uint32_t>(up_to_units(run_.bytes));
  if (run_.test != PerfTest::kWriteBw) return options;
  // A header goes in front. Twice what is in flight, so that room comes back in time; a fragment is at most a quarter.
  const std::uint64_t place = up_to_units(run_.bytes + 64);
  options.fragment_bytes = std::max<std::uint64_t>(place, 1024);
  options.max_operations = run_.in_flight;
  if (role_ == PerfRole::kServer)
    options.lease_bytes = std::max<std::uint64_t>(4096, place * std::max(4U, 2U * run_.in_flight));
  return options;
}

Result<void> PerfEnd::dial(std::uint16_t port) {
  VERBENA_ASSIGN(const link::Endpoint local, channel_->local_endpoint(bytes_of(run_)));
  VERBENA_ASSIGN(auto control, device_.fabric->dial(port, local, patience()));
  VERBENA_ASSIGN(const auto data, message::Channel::user_data_of(control.remote()));
  const auto echoed = perf_wire::decode_run(data);
  if (!echoed || *echoed != run_)
    return fail(Status::kProtocol, "verbena-perf", 0, "what answers there is no verbena-perf server of this version");
  VERBENA_TRY(channel_->connect(local, control.remote(), patience(), control.how()));
  VERBENA_ASSIGN(link::Lifeline lifeline, control.finish(patience()));
  channel_->keep(std::move(lifeline));
  VERBENA_TRY(channel_->open_lease(patience()));
  if (!link_) return {};
  VERBENA_ASSIGN(const link::Endpoint local_link, link_endpoint());
  VERBENA_ASSIGN(auto dialed, device_.fabric->dial(port, local_link, patience()));
  VERBENA_ASSIGN(const LinkHello hello, hello_of(dialed.remote()));
  VERBENA_TRY(connect_link(local_link, dialed.remote(), dialed.how()));
  VERBENA_ASSIGN(link::Lifeline link_lifeline, dialed.finish(patience()));
  link_->keep(std::move(link_lifeline));
  peer_ = hello.window();
  return link_->import_window(peer_, patience());
}

Result<void> PerfEnd::welcome(link::Incoming& control, link::Listener& listener) {
  VERBENA_ASSIGN(const link::Endpoint local, channel_->local_endpoint(bytes_of(run_)));
  VERBENA_TRY(channel_->connect(local, control.remote(), patience(), control.how()));
  VERBENA_TRY(control.answer(local, patience()));
  VERBENA_ASSIGN(link::Lifeline lifeline, control.finish(patience()));
  channel_->keep(std::move(lifeline));
  VERBENA_TRY(channel_->open_lease(patience()));
  if (!link_) return {};
  VERBENA_ASSIGN(auto incoming, next_link(listener));
  VERBENA_ASSIGN(const LinkHello hello, hello_of(incoming.remote()));
  VERBENA_ASSIGN(const link::Endpoint local_link, link_endpoint());
  VERBENA_TRY(connect_link(local_link, incoming.remote(), incoming.how()));
  VERBENA_TRY(incoming.answer(local_link, patience()));
  VERBENA_ASSIGN(link::Lifeline link_lifeline, incoming.finish(patience()));
  link_->keep(std::move(link_lifeline));
  peer_ = hello.window();
  return link_->import_window(peer_, patience());
}

Result<link::Incoming> PerfEnd::next_link(link::Listener& listener) {
  const Deadline deadline = patience();
  for (;;) {
    VERBENA_ASSIGN(link::Incoming incoming, listener.next(deadline));
    if (perf_wire::decode_link(incoming.remote().user_data(), run_)) return incoming;
    incoming.reject(Status::kBusy, "another run is going on: try again when it has ended");
  }
}

Result<link::Endpoint> PerfEnd::link_endpoint() {
  const nic::Window window = shared_.window();
  return link_->local_endpoint(bytes_of(LinkHello{.session = run_.session,
                                                  .address = window.address,
                                                  .memory = window.memory_id,
                                                  .length = static_cast<std::uint32_t>(window.length),
                                                  .rkey = window.rkey}));
}

Result<LinkHello> PerfEnd::hello_of(const link::Endpoint& remote) const {
  const auto hello = perf_wire::decode_link(remote.user_data(), run_);
  if (hello) return *hello;
  return fail(Status::kProtocol, "verbena-perf", 0, "the peer's hello has no window of this run");
}

Result<void> PerfEnd::connect_link(const link::Endpoint& local, const link::Endpoint& remote,
                                   const link::BringUp& how) {
  if (shared_.memory_id() != 0)
    VERBENA_TRY(device_.nic().grant(shared_.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = remote.qp.gid}));
  return link_->connect(local, remote, patience(), how);
}

// --- what arrives

void PerfEnd::on_message(message::Channel& channel, std::span<const std::byte> body) noexcept {
  if (run_.test != PerfTest::kMessage || messages_ == run_.rounds) {
    bye_ = true;
  } else if (body.size() == run_.bytes) {
    ++messages_;
  } else {
    channel.fail(Status::kProtocol);
  }
}

void PerfEnd::on_fragment(message::Channel& channel, const message::Fragment& fragment) noexcept {
  if (fragment.total != run_.bytes) channel.fail(Status::kProtocol);
  larges_ += fragment.last() ? 1 : 0;
}

void PerfEnd::on_complete(message::Channel& /*channel*/, std::uint64_t token, Status status) noexcept {
  if (status != Status::kOk) return;  // The channel is dead, and on_failure follows.
  ++completed_;
  fresh_ticks_[fresh_++] = ticks_now() - token;
}

// --- rounds

// The last byte of a write lands last, and no two rounds that follow each other have the same.
Status PerfEnd::write_mark(std::uint64_t round, Deadline deadline) noexcept {
  own_.data()[run_.bytes - 1] = static_cast<std::byte>(round);
  return link_->write(own_span(), peer_span(), deadline);
}

Status PerfEnd::await_mark(std::uint64_t round, Deadline deadline) noexcept {
  constexpr unsigned kLookEvery = 1024;  // Rare enough that the look does not show in the figure.
  const auto* last = reinterpret_cast<const std::uint8_t*>(shared_.data() + run_.bytes - 1);
  Deadline next_probe = Deadline::never();
  for (unsigned polls = 1;; ++polls) {
    if (__atomic_load_n(last, __ATOMIC_ACQUIRE) == static_cast<std::uint8_t>(round)) return Status::kOk;
    space_polls();
    if (polls % kLookEvery != 0) continue;
    loop_->poll();
    if (failure_ != Status::kOk) return failure_;
    if (deadline.passed()) return Status::kTimedOut;
    if (next_probe.is_never()) next_probe = Deadline::after(kProbeAfter);
    if (!next_probe.passed()) continue;
    if (const Status status = probe(); status != Status::kOk) return status;
    next_probe = Deadline::after(kProbeAfter);
  }
}

Status PerfEnd::probe() noexcept {
  std::byte one{};
  return link_->read(std::span(&one, 1), {.address = peer_.address, .length = 1, .rkey = peer_.rkey}, patience());
}

Status PerfEnd::ping_pong(std::uint64_t round, Deadline deadline) noexcept {
  const Status status = write_mark(round, deadline);
  return status == Status::kOk ? await_mark(round, deadline) : status;
}

Status PerfEnd::send(std::span<const std::byte> body, Deadline deadline) noexcept {
  for (;;) {
    const Status status = channel_->send(body);
    if (status != Status::kAgain) return status;
    if (loop_->wait(deadline) == 0 && deadline.passed()) return Status::kTimedOut;
  }
}

Status PerfEnd::message(std::uint64_t round, Deadline deadline) noexcept {
  const Status status = send({own_.data(), run_.bytes}, deadline);
  if (status != Status::kOk) return status;
  return await([&] { return messages_ >= round; }, deadline);
}

void PerfEnd::say_bye() noexcept {
  const Deadline deadline = Deadline::after(kByeTimeout);
  // Everything is measured: a server that is gone before it answers has nothing to say any more.
  if (send(std::as_bytes(std::span("b", 1)), deadline) == Status::kOk) (void)await([&] { return bye_; }, deadline);
}

Status PerfEnd::serve() noexcept {
  Status status = serve_rounds();
  if (status == Status::kOk) status = await_bye();
  return status == Status::kOk ? send(std::as_bytes(std::span("b", 1)), patience()) : status;
}

Status PerfEnd::serve_rounds() noexcept {
  Status status = Status::kOk;
  for (std::uint64_t round = 1; round <= run_.rounds && status == Status::kOk; ++round) {
    const Deadline deadline = patience();
    if (run_.test == PerfTest::kPingPong) {
      status = await_mark(round, deadline);
      if (status == Status::kOk) status = write_mark(round, deadline);
    } else if (run_.test == PerfTest::kMessage) {
      status = await([&] { return messages_ >= round; }, deadline);
      if (status == Status::kOk) status = send({own_.data(), run_.bytes}, deadline);
    } else if (run_.test == PerfTest::kWriteBw) {
      status = await([&] { return larges_ >= round; }, deadline);
    } else {
      break;  // Its memory is used, and that is all.
    }
  }
  return status;
}

Status PerfEnd::await_bye() noexcept {
  for (;;) {
    const Status status = await([&] { return bye_; }, patience());
    // A client that reads and writes says nothing meanwhile, and may take as long as it wants to.
    if (status != Status::kTimedOut || !link_ || end_.passed()) return status;
    if (const Status alive = probe(); alive != Status::kOk) return alive;
  }
}

}  // namespace verbena::programs
