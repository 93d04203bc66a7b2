#include "programs/perf_connection.hpp"

#include "base/error.hpp"
#include "nic/verbs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

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

namespace {

/// Where `bytes` lie one behind the other in the peer's physical memory, from the beginning of a page on.
Result<std::uint64_t> place_in(const remote::PhysicalTable& table, std::uint64_t bytes) {
  for (std::size_t run = 0; run < table.size(); ++run) {
    std::size_t index = run;
    const std::uint64_t address = table.run(run).address;
    if (table.find(address, bytes, index) == Status::kOk) return address;
  }
  return fail(Status::kLimit, "verbena-perf", 0,
              "the server's memory lies in {} pieces of physical memory, none of which has {} B: transparent hugepages "
              "for shared memory make longer ones (docs/physical-addressing.md)",
              table.size(), bytes);
}

}  // namespace

// --- setup

Result<void> PerfConnection::create(PerfDevice& device, engine::CompletionLoop& loop) {
  if (facts_of(run_.test).by == PerfBy::kChannel) {
    VERBENA_ASSIGN(channel_,
                   message::Channel::create(loop, device.pd.get(), perf_wire::channel_options(run_, role_), *this));
  } else {
    remote::LinkOptions options = perf_wire::link_options(run_);
    options.handler = this;
    VERBENA_ASSIGN(link_, remote::Link::create(loop, device.pd.get(), options));
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
  VERBENA_TRY(link_->import_window(peer_, deadline));
  const bool is_physical = facts_of(run_.test).by == PerfBy::kPhysical && role_ == PerfRole::kClient;
  return is_physical ? open_physical(deadline) : Result<void>();
}

Result<void> PerfConnection::open_physical(Deadline deadline) {
  const auto read = [&](std::span<std::byte> to, std::uint64_t offset) -> Result<void> {
    const Status status =
        link_->read(to, {.address = peer_.address + offset, .length = to.size(), .rkey = peer_.rkey}, deadline);
    if (status == Status::kOk) return {};
    return fail(status, "verbena-perf", 0, "the server's table of physical addresses could not be read");
  };
  const std::uint64_t offset = perf_wire::table_offset(run_);
  std::uint64_t length = 0;
  VERBENA_TRY(read(std::as_writable_bytes(std::span(&length, 1)), offset));
  if (length > peer_.length - offset - sizeof length)
    return fail(Status::kProtocol, "verbena-perf", 0, "the server's table of physical addresses has {} B", length);
  std::vector<std::byte> bytes(length);
  VERBENA_TRY(read(bytes, offset + sizeof length));
  VERBENA_ASSIGN(remote::PhysicalTable table, remote::PhysicalTable::decode(bytes));
  VERBENA_ASSIGN(place_, place_in(table, run_.bytes));
  VERBENA_ASSIGN(physical_, remote::PhysicalMap::create(*link_, std::move(table), deadline));
  return {};
}

std::expected<std::uint16_t, Status> PerfConnection::index_in(const perf_wire::RunHello& run,
                                                              const link::Endpoint& remote) noexcept {
  const auto index_of = [](const auto& hello) -> std::expected<std::uint16_t, Status> {
    if (!hello) return std::unexpected(hello.error());
    return hello->index;
  };
  if (facts_of(run.test).one_sided()) return index_of(perf_wire::decode_link(remote.user_data(), run));
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
