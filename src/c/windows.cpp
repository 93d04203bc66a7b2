// Of a connection: windows that one side asks for and the other answers, and tables of physical addresses.
#include "base/error.hpp"
#include "c/conn.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <ranges>
#include <utility>

namespace verbena::c {
namespace {

/// Of one step of making a window usable.
constexpr std::chrono::milliseconds kImportTimeout{1000};
constexpr const char* kUnusable = "the connection is dead or in use";

[[nodiscard]] nic::Window nic_window_of(const RdmaWindow& window) noexcept {
  return {.address = window.addr,
          .length = window.length,
          .rkey = window.rkey,
          .access = verbs_access_of(window.access),
          .memory_id = window.memory_id};
}

}  // namespace

Result<const RdmaMemory*> Conn::allocate(std::size_t size) {
  return runtime_->registry().allocate(this, size, {.to = nic::Grant::To::kOneGid, .gid = peer_gid_});
}

// --- asking -------------------------------------------------------------------------------------------------------

Result<RdmaWindow> Conn::look_up(std::string_view name, Deadline deadline) {
  if (name.empty() || name.size() > wire::kMaxNameBytes)
    return fail(Status::kBadArgument, "rdmaConnLookup", 0, "a name has 1 to {} bytes; got {}", wire::kMaxNameBytes,
                name.size());
  Operation operation;
  operation.from = reinterpret_cast<const std::byte*>(name.data());
  operation.length = name.size();
  return ask(operation, deadline);
}

Result<RdmaWindow> Conn::look_up(std::uint32_t rkey, Deadline deadline) {
  Operation operation;
  operation.immediate = rkey;
  return ask(operation, deadline);
}

Result<RdmaWindow> Conn::ask(Operation& operation, Deadline deadline) {
  operation.kind = Request::Kind::kAsk;
  const Status status = carry_out(operation, deadline);
  if (status == Status::kNotFound)
    return fail(status, "rdmaConnLookup", 0, "the peer has no such window: check its name or key, and its rights");
  if (status == Status::kTimedOut)
    return fail(status, "rdmaConnLookup", 0,
                "the peer did not answer: a client without callbacks answers only during its calls");
  if (status != Status::kOk) return fail(status, "rdmaConnLookup", 0, "the peer was not asked");
  const RdmaWindow window{.addr = operation.found.address,
                          .length = operation.found.length,
                          .rkey = operation.found.rkey,
                          .access = operation.found.access,
                          .memory_id = operation.found.memory_id};
  VERBENA_TRY(import_window(window, deadline));
  return window;
}

Result<void> Conn::import_window(const RdmaWindow& window, Deadline deadline) {
  Result<void> imported;
  const nic::Window of = nic_window_of(window);
  const Status handed = run(
      [&] {
        // Handed over by a thread that did not see it detached.
        if (channel_ == nullptr) {
          imported = fail(reason_, "rdmaConnImportWindow", 0, kUnusable);
        } else if (!channel_->is_usable(of)) {  // Of one that is there already, nothing is to be done.
          imported = channel_->import_window(of, Deadline::after(kImportTimeout));
        }
      },
      deadline);
  return handed == Status::kOk ? imported : fail(handed, "rdmaConnImportWindow", 0, kUnusable);
}

Result<void> Conn::release_window(const RdmaWindow& window, Deadline deadline) {
  Result<void> released;
  const Status handed = run(
      [&] {
        released = channel_ != nullptr ? channel_->release_window(nic_window_of(window))
                                       : fail(reason_, "rdmaConnReleaseWindow", 0, kUnusable);
      },
      deadline);
  return handed == Status::kOk ? released : fail(handed, "rdmaConnReleaseWindow", 0, kUnusable);
}

void Conn::send_asks() noexcept {
  for (Operation* operation = asks_.first(); operation != nullptr; operation = operation->next) {
    if (operation->receipt != 0) continue;
    const wire::Head head{.kind = wire::Kind::kAsk,
                          .immediate = operation->immediate,
                          .total = operation->length,
                          .offset = last_ask_ + 1};
    if (!send(head, {operation->from, operation->length})) return;
    operation->receipt = ++last_ask_;
  }
}

bool Conn::on_answer(const wire::Head& head, std::span<const std::byte> data) noexcept {
  std::optional<wire::Found> found;
  if (!data.empty()) {
    found = wire::decode_found(data);
    if (!found) return false;
  }
  for (Operation* operation = asks_.first(); operation != nullptr; operation = operation->next) {
    if (operation->receipt != head.offset) continue;
    operation->is_absent = !found;
    if (found) {
      operation->found = *found;
      finish(*operation, Status::kOk);
    } else if (operation->length == 0) {
      finish(*operation, Status::kNotFound);
    }
    break;
  }
  return true;  // Of one that is over, too.
}

// --- answering ----------------------------------------------------------------------------------------------------

bool Conn::on_question(const wire::Head& head, std::span<const std::byte> name) noexcept {
  if (name.size() > wire::kMaxNameBytes) return false;
  // Who asks has given up on the oldest.
  if (questions_.size() == kQuestions) questions_.erase(questions_.begin());
  try {
    questions_.push_back({.number = head.offset,
                          .rkey = head.immediate,
                          .name = std::string(reinterpret_cast<const char*>(name.data()), name.size())});
  } catch (const std::bad_alloc&) {
    return true;  // It times out there.
  }
  questions_generation_ = ~std::uint64_t{0};
  return true;
}

void Conn::answer_questions() noexcept {
  Registry& registry = runtime_->registry();
  const std::uint64_t generation = registry.generation();
  if (questions_generation_ == generation) return;
  bool is_sent = true;
  const auto is_answered = [&](Question& question) {
    if (!is_sent) return false;
    const bool is_by_key = question.name.empty();
    const std::optional<RdmaWindow> window =
        is_by_key ? registry.find_key(this, question.rkey) : registry.find_name(this, question.name);
    if (!window && question.is_told_absent) return false;
    const wire::Head head{.kind = wire::Kind::kAnswer, .total = 0, .offset = question.number};
    if (!window) {
      question.is_told_absent = is_sent = send(head, {});
      return is_sent && is_by_key;
    }
    const wire::Found found{.address = window->addr,
                            .length = window->length,
                            .rkey = window->rkey,
                            .access = window->access,
                            .memory_id = window->memory_id};
    is_sent = send(head, std::as_bytes(std::span(&found, 1)));
    return is_sent;
  };
  std::erase_if(questions_, is_answered);
  if (is_sent) questions_generation_ = generation;
}

// --- physical addresses -------------------------------------------------------------------------------------------

Result<std::uint64_t> Conn::export_physical(const RdmaMemory* memory, Deadline deadline) {
  Registry& registry = runtime_->registry();
  // The peer keeps what it was told, for it does not hear of what is taken back.
  if (exports_.fetch_add(1, std::memory_order_relaxed) >= wire::kMaxTables) {
    exports_.fetch_sub(1, std::memory_order_relaxed);
    return fail(Status::kLimit, "rdmaPAExport", 0, "a connection exports {} times in its life: export more at once",
                wire::kMaxTables);
  }
  const Result<std::vector<std::byte>> table = registry.export_physical(this, memory);
  if (!table) {
    exports_.fetch_sub(1, std::memory_order_relaxed);
    return std::unexpected(table.error());
  }
  Operation operation;
  operation.wire_kind = wire::Kind::kTable;
  operation.from = table->data();
  operation.length = table->size();
  if (const Status told = carry_out(operation, deadline); told != Status::kOk)
    return fail(told, "rdmaPAExport", 0, "the peer was not told of it");
  return registry.physical_of(this, memory->addr).value_or(0);
}

Result<std::uint64_t> physical_address_of(Conn* conn, const void* local) {
  if (conn != nullptr && conn->runtime() != nullptr)
    if (const auto exported = conn->runtime()->registry().physical_of(conn, local)) return *exported;
  VERBENA_ASSIGN(const host::PageMap pages, host::PageMap::open());
  return pages.address_of(local);
}

bool Conn::on_table(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (head.offset == 0) table_bytes_.clear();
  const bool is_next = head.offset == table_bytes_.size() && !piece.empty() && head.offset + piece.size() <= head.total;
  if (!is_next || head.total > remote::PhysicalTable::kMaxBytes || tables_.size() == wire::kMaxTables) return false;
  try {
    // Grows with what arrives, not with what is claimed.
    table_bytes_.insert(table_bytes_.end(), piece.begin(), piece.end());
    if (table_bytes_.size() != head.total) return true;
    auto table = remote::PhysicalTable::decode(std::exchange(table_bytes_, {}));
    if (!table) return false;
    const std::size_t runs = table->size();
    tables_.push_back({.table = std::move(*table), .is_imported = std::vector<bool>(runs)});
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

Status Conn::find_physical(std::uint64_t address, std::uint64_t length, message::RemoteSpan& remote) noexcept {
  // The last one first: an address that was exported anew is under its new key.
  for (PeerTable& of : std::views::reverse(tables_)) {
    if (of.table.find(address, length, of.last) != Status::kOk) continue;
    const nic::Window window = of.table.window(of.last);
    if (!of.is_imported[of.last]) {
      ibv_qp* const qp = channel_->queue_pair();
      if (qp == nullptr) return Status::kClosed;
      nic::Nic& nic = runtime_->fabric().nic();
      if (const auto imported = nic.import_window(qp, window, Deadline::after(kImportTimeout)); !imported) {
        const Status status = imported.error().status();
        // Seen here before the NIC tells of it.
        if (status == Status::kPeerLost) channel_->fail(status);
        return status;
      }
      of.is_imported[of.last] = true;
    }
    channel_->lend_window(window);
    remote = {address, std::min(length, window.address + window.length - address), window.rkey};
    return Status::kOk;
  }
  return tables_.empty() ? Status::kNotFound : Status::kOutOfRange;
}

}  // namespace verbena::c
