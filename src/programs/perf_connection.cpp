#include "programs/perf_connection.hpp"

#include "base/error.hpp"
#include "nic/verbs.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace verbena::programs {

using perf_wire::ChannelHello;
using perf_wire::LinkHello;

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

message::Options PerfConnection::channel_options() const noexcept {
  if (run_.test != PerfTest::kLargeBw)
    return {.depth = perf_wire::channel_depth(run_),
            .eager_bytes = static_cast<std::uint32_t>(perf_wire::up_to_lines(run_.bytes))};
  message::Options options{.eager_bytes = 64};
  // A header goes in front; a fragment is at most a quarter of the lease.
  options.fragment_bytes = std::max<std::uint64_t>(perf_wire::up_to_lines(std::uint64_t{run_.bytes} + 64), 1024);
  options.max_operations = run_.depth;
  if (role_ == PerfRole::kServer) options.lease_bytes = perf_wire::lease_bytes(run_);
  return options;
}

remote::LinkOptions PerfConnection::link_options() noexcept {
  const bool has_immediates = run_.test == PerfTest::kWriteImm || run_.test == PerfTest::kWriteImmBw;
  return {.bounce_bytes = 64,
          .max_operations = run_.depth,
          .max_reads = run_.depth,
          .receives = has_immediates ? std::max<std::uint32_t>(run_.depth, 4) : 0,
          .handler = this};
}

std::uint32_t PerfConnection::completions_needed() noexcept {
  return facts_of(run_.test).by == PerfBy::kChannel ? message::completions_needed(channel_options())
                                                    : remote::completions_needed(link_options());
}

Result<void> PerfConnection::create(PerfDevice& device, engine::CompletionLoop& loop) {
  if (facts_of(run_.test).by == PerfBy::kChannel) {
    VERBENA_ASSIGN(channel_, message::Channel::create(loop, device.pd.get(), channel_options(), *this));
  } else {
    VERBENA_ASSIGN(link_, remote::Link::create(loop, device.pd.get(), link_options()));
  }
  return {};
}

Result<link::Endpoint> PerfConnection::local_endpoint(std::uint16_t index, const nic::RegisteredArena& shared) {
  if (channel_) {
    const ChannelHello hello{.session = run_.session, .index = index};
    return channel_->local_endpoint(std::as_bytes(std::span(&hello, 1)));
  }
  const nic::Window window = shared.window();
  const LinkHello hello{.session = run_.session,
                        .address = window.address,
                        .memory = window.memory_id,
                        .rkey = window.rkey,
                        .index = index};
  return link_->local_endpoint(std::as_bytes(std::span(&hello, 1)));
}

Result<void> PerfConnection::connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                                     const link::BringUp& how) {
  connected_ = true;  // Or never will be.
  return link_ ? link_->connect(local, remote, deadline, how) : channel_->connect(local, remote, deadline, how);
}

Result<void> PerfConnection::open(const link::Endpoint& remote, link::Lifeline lifeline, Deadline deadline) {
  if (channel_) {
    channel_->keep(std::move(lifeline));
    return channel_->open_lease(deadline);
  }
  link_->keep(std::move(lifeline));
  const auto hello = perf_wire::decode_link(remote.user_data(), run_);
  if (!hello) return fail(Status::kProtocol, "verbena-perf", 0, "the peer's hello has no window of this run");
  peer_ = perf_wire::window_of(*hello, run_);
  return link_->import_window(peer_, deadline);
}

std::expected<std::uint16_t, Status> PerfConnection::index_in(const perf_wire::RunHello& run,
                                                              const link::Endpoint& remote) noexcept {
  const auto index_of = [](const auto& hello) -> std::expected<std::uint16_t, Status> {
    if (!hello) return std::unexpected(hello.error());
    return hello->index;
  };
  if (facts_of(run.test).by == PerfBy::kLink) return index_of(perf_wire::decode_link(remote.user_data(), run));
  const auto data = message::Channel::user_data_of(remote);
  if (!data) return std::unexpected(Status::kProtocol);
  return index_of(perf_wire::decode_channel(*data, run));
}

// --- what goes out

Status PerfConnection::send(Wants wants) noexcept {
  if (channel_) {
    own_.data[0] = static_cast<std::byte>(wants);
    const Status status = channel_->send({own_.data, own_.length});
    counts_.completed += status == Status::kOk ? 1 : 0;  // Its bytes are this side's again.
    return status;
  }
  const Status status = link_->start_write_imm(own_, peer(), static_cast<std::uint32_t>(wants), 0);
  in_flight_ += status == Status::kOk ? 1 : 0;
  return status;
}

void PerfConnection::answer() noexcept {
  // What is not kAgain kills the connection, and on_failure says so.
  if (!owes_ || send(Wants::kNothing) != Status::kOk) return;
  owes_ = false;
  --counts_.owed;
}

Status PerfConnection::start(std::uint64_t token) noexcept {
  Status status = Status::kBadArgument;
  switch (run_.test) {
    case PerfTest::kReadBw: status = link_->start_read(own_, peer(), token); break;
    case PerfTest::kWriteBw: status = link_->start_write(own_, peer(), token); break;
    case PerfTest::kWriteImmBw: status = link_->start_write_imm(own_, peer(), 0, token); break;
    case PerfTest::kFetchAddBw: status = link_->start_fetch_add(word(), 1, token); break;
    case PerfTest::kCompareSwapBw: status = link_->start_compare_swap(word(), 0, 0, token); break;
    case PerfTest::kLargeBw: status = channel_->start_large({}, own_, token); break;
    default: break;
  }
  in_flight_ += status == Status::kOk ? 1 : 0;
  return status;
}

// --- what arrives

void PerfConnection::complete(std::uint64_t token, Status status) noexcept {
  if (status != Status::kOk) return;  // The connection is dead, and on_failure follows.
  --in_flight_;
  ++counts_.completed;
  if (token != 0 && counts_.ticks != nullptr) counts_.ticks->record((ticks_now() - token) * kPerfTick);
}

bool PerfConnection::note_arrival(Wants wants) noexcept {
  ++counts_.arrived;
  if (role_ == PerfRole::kClient || wants != Wants::kAnswer) return true;
  if (owes_) return false;
  owes_ = true;
  ++counts_.owed;
  answer();
  return true;
}

void PerfConnection::on_message(message::Channel& channel, std::span<const std::byte> body) noexcept {
  if (body.size() != run_.bytes || !note_arrival(static_cast<Wants>(body.front()))) channel.fail(Status::kProtocol);
}

void PerfConnection::on_fragment(message::Channel& channel, const message::Fragment& fragment) noexcept {
  if (fragment.total != run_.bytes) channel.fail(Status::kProtocol);
  counts_.arrived += fragment.last() ? 1 : 0;
}

void PerfConnection::on_immediate(remote::Link& link, std::uint32_t immediate, std::uint32_t bytes) noexcept {
  if (bytes != run_.bytes || !note_arrival(static_cast<Wants>(immediate))) link.fail(Status::kProtocol);
}

}  // namespace verbena::programs
