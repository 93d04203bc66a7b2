// The carrier by PMIx. PMIx stays inside this directory, which becomes an optional archive of its own.
#include "base/error.hpp"

#include <verbena/mesh_pmix.hpp>

#include <pmix.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::mesh {

using namespace std::chrono_literals;

namespace {

/// Asks the server to end a request after this time if the process has published nothing.
constexpr int kRequestSeconds = 1;
/// A request without an answer for this long counts as lost; the next one may take twice as long. The server of Open
/// MPI 4.1 never answers for a process that was killed, and PMIx keeps such requests.
constexpr auto kOverdue = 2s;
/// The fence may take a third of the time to join; then the server has this long to report that it has failed.
constexpr int kFenceShare = 3;
constexpr auto kFenceSlack = 1s;
/// If a process is still missing after this, it may have published another blob by now, or its known blob may be an
/// earlier mesh's. If the blob is the same, it is asked for again after twice as long.
constexpr auto kStale = 100ms;
constexpr unsigned kMostDoublings = 7;

[[nodiscard]] std::unexpected<Error> fail_pmix(const char* call, pmix_status_t status, const char* fix) {
  return fail(Status::kSystem, call, 0, "PMIx says {}: {}", PMIx_Error_string(status), fix);
}

[[nodiscard]] pmix_proc_t process(const pmix_proc_t& self, pmix_rank_t rank) noexcept {
  pmix_proc_t proc = self;
  proc.rank = rank;
  return proc;
}

/// Attributes of one call.
class Attributes {
 public:
  template <class Value>
  void add(const char* name, Value value, pmix_data_type_t type) {
    PMIX_INFO_CONSTRUCT(&infos_.emplace_back());
    (void)PMIx_Info_load(&infos_.back(), name, &value, type);
  }
  [[nodiscard]] const pmix_info_t* data() const noexcept { return infos_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return infos_.size(); }

 private:
  std::vector<pmix_info_t> infos_;  // Numbers only: nothing in them has to be freed.
};

/// Answers from PMIx's thread, which may arrive after the carrier has ended.
class Answers {
 public:
  explicit Answers(unsigned processes) : entries_(processes) {}

  struct Answer {
    pmix_status_t status = PMIX_SUCCESS;
    std::size_t bytes = 0;  ///< Published bytes, whether or not they are a blob.
    Blob blob{};
  };
  /// Whether a request for process `id` may start; it counts as in flight from then on.
  [[nodiscard]] bool start(unsigned id) noexcept {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[id];
    if (!entry.next.passed()) return false;
    entry.next = Deadline::after(kOverdue * (1U << entry.losses));
    entry.losses = std::min(entry.losses + 1, kMostDoublings);
    return true;
  }
  /// Stores an answer. A known blob survives a failure to read it again.
  void set(unsigned id, const Answer& answer) noexcept {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[id];
    entry.losses = 0;
    const bool is_found = answer.status == PMIX_SUCCESS;
    const bool was_found = entry.latest && entry.latest->status == PMIX_SUCCESS;
    const bool is_same = is_found && was_found && answer.blob == entry.latest->blob;
    entry.repeats = is_same ? std::min(entry.repeats + 1, kMostDoublings) : 0;
    if (is_found || !was_found) entry.latest = answer;
    entry.next = is_found ? Deadline::after(kStale * (1U << entry.repeats)) : Deadline::now();
  }
  [[nodiscard]] std::optional<Answer> latest(unsigned id) const noexcept {
    const std::lock_guard lock(mutex_);
    return entries_[id].latest;
  }
  void end_fence() noexcept {
    const std::lock_guard lock(mutex_);
    has_fence_ended_ = true;
  }
  [[nodiscard]] bool has_fence_ended() const noexcept {
    const std::lock_guard lock(mutex_);
    return has_fence_ended_;
  }

 private:
  struct Entry {
    Deadline next = Deadline::now();  ///< Earliest start of the next request.
    unsigned losses = 0;              ///< Requests in a row without an answer, including the one in flight.
    unsigned repeats = 0;             ///< Answers in a row with the same blob.
    std::optional<Answer> latest{};
  };
  mutable std::mutex mutex_;
  bool has_fence_ended_ = false;
  std::vector<Entry> entries_;
};

/// A call whose callback comes later and frees it: PMIx reads the arguments until then.
struct Request {
  std::shared_ptr<Answers> answers;
  pmix_proc_t of{};
  std::string key{};
  Attributes attributes{};
};

void fence_ended(pmix_status_t /*status*/, void* context) {
  const std::unique_ptr<Request> request(static_cast<Request*>(context));
  request->answers->end_fence();
}

void value_came(pmix_status_t status, pmix_value_t* value, void* context) {
  const std::unique_ptr<Request> request(static_cast<Request*>(context));
  Answers::Answer answer{.status = status};
  if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_BYTE_OBJECT) {
    answer.bytes = value->data.bo.size;
    if (answer.bytes == answer.blob.size()) std::memcpy(answer.blob.data(), value->data.bo.bytes, answer.bytes);
  }
  request->answers->set(request->of.rank, answer);
}

class PmixCarrier final : public Carrier {
 public:
  /// Requires PMIx to be initialized once more for this carrier.
  PmixCarrier(const pmix_proc_t& self, unsigned processes, std::string_view job)
      : self_(self), key_("verbena.mesh."), answers_(std::make_shared<Answers>(processes)), processes_(processes) {
    key_ += job;
  }
  PmixCarrier(const PmixCarrier&) = delete;
  PmixCarrier& operator=(const PmixCarrier&) = delete;
  ~PmixCarrier() override { (void)PMIx_Finalize(nullptr, 0); }

  // The fence lets the servers exchange all blobs in one collective call. Nobody waits for it: it does not end while a
  // process is missing, and only Mesh::join can tell which. `find` gives it some of the time, then asks for each
  // process.
  Result<void> publish(unsigned id, const Blob& blob, Deadline deadline) override {
    if (id != self_.rank)
      return fail(Status::kBadArgument, "Mesh::join", 0, "this is process {} of the job: id must not be {}", self_.rank,
                  id);
    Blob copy = blob;
    pmix_value_t value{};
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo = {.bytes = reinterpret_cast<char*>(copy.data()), .size = copy.size()};
    if (const pmix_status_t put = PMIx_Put(PMIX_GLOBAL, key_.c_str(), &value); put != PMIX_SUCCESS)
      return fail_pmix("PMIx_Put", put, "check that job is at most 64 bytes long, and PMIx's own messages");
    if (const pmix_status_t committed = PMIx_Commit(); committed != PMIX_SUCCESS)
      return fail_pmix("PMIx_Commit", committed, "check that the launcher still runs on this host");
    start_fence(deadline);
    return {};
  }

  Result<Blob> find(unsigned id) override {
    if (id >= processes_)
      return fail(Status::kBadArgument, "Mesh::join", 0, "the job has {} processes, and no process {}", processes_, id);
    if (!answers_->has_fence_ended() && !fence_overdue_.passed())
      return fail(Status::kAgain, "PMIx_Fence_nb", 0, "not all processes of the job have published yet");
    const auto answer = answers_->latest(id);
    if (answers_->start(id)) ask(id, answer && answer->status == PMIX_SUCCESS);
    if (!answer || answer->status != PMIX_SUCCESS)
      return fail(Status::kAgain, "PMIx_Get_nb", 0,
                  "process {} has published nothing yet (PMIx says {}): did it end before Mesh::join?", id,
                  answer ? PMIx_Error_string(answer->status) : "nothing");
    if (answer->bytes == answer->blob.size()) return answer->blob;
    return fail(Status::kProtocol, "PMIx_Get_nb", 0,
                "process {} has published {} bytes, and a blob has {}: let all processes link the same Verbena", id,
                answer->bytes, answer->blob.size());
  }

 private:
  void start_fence(Deadline deadline) {
    const auto share = std::chrono::floor<std::chrono::seconds>(deadline.left() / kFenceShare);
    const auto time = std::clamp<std::chrono::seconds>(share, 1s, 24h);
    fence_overdue_ = Deadline::after(time + kFenceSlack);
    auto request = std::make_unique<Request>(answers_, process(self_, PMIX_RANK_WILDCARD));
    request->attributes.add(PMIX_COLLECT_DATA, true, PMIX_BOOL);
    request->attributes.add(PMIX_TIMEOUT, static_cast<int>(time.count()), PMIX_INT);
    const pmix_status_t started = PMIx_Fence_nb(&request->of, 1, request->attributes.data(), request->attributes.size(),
                                                fence_ended, request.get());
    if (started == PMIX_SUCCESS) {
      (void)request.release();
    } else {
      // The fence is done already, or there is none and each process is asked for.
      answers_->end_fence();
    }
  }

  void ask(unsigned id, bool is_known) {
    auto request = std::make_unique<Request>(answers_, process(self_, id), key_);
    request->attributes.add(PMIX_TIMEOUT, kRequestSeconds, PMIX_INT);
    if (is_known) request->attributes.add(PMIX_GET_REFRESH_CACHE, true, PMIX_BOOL);
    const pmix_status_t asked = PMIx_Get_nb(&request->of, request->key.c_str(), request->attributes.data(),
                                            request->attributes.size(), value_came, request.get());
    if (asked == PMIX_SUCCESS) {
      (void)request.release();
    } else {
      answers_->set(id, {.status = asked});
    }
  }

  const pmix_proc_t self_;
  std::string key_;
  const std::shared_ptr<Answers> answers_;
  const unsigned processes_;
  Deadline fence_overdue_ = Deadline::now();
};

[[nodiscard]] Result<unsigned> size_of_job(const pmix_proc_t& self) {
  const pmix_proc_t all = process(self, PMIX_RANK_WILDCARD);
  // The local server knows it. PMIx itself knows it only the first time that it is initialized.
  Attributes attributes;
  attributes.add(PMIX_IMMEDIATE, true, PMIX_BOOL);
  attributes.add(PMIX_TIMEOUT, kRequestSeconds, PMIX_INT);
  pmix_value_t* value = nullptr;
  const pmix_status_t got = PMIx_Get(&all, PMIX_JOB_SIZE, attributes.data(), attributes.size(), &value);
  if (got != PMIX_SUCCESS || value == nullptr)
    return fail_pmix("PMIx_Get", got, "the launcher does not tell the size of the job (PMIX_JOB_SIZE)");
  const unsigned size = value->type == PMIX_UINT32 ? value->data.uint32 : 0;
  PMIX_VALUE_RELEASE(value);
  if (self.rank < size) return size;
  return fail(Status::kSystem, "PMIx_Get", 0, "the launcher says that this is process {} of {}", self.rank, size);
}

}  // namespace

Result<std::unique_ptr<Carrier>> pmix_carrier(Options& options) {
  constexpr const char* kCall = "pmix_carrier";
  pmix_proc_t self{};
  const pmix_status_t initialized = PMIx_Init(&self, nullptr, 0);
  if (initialized == PMIX_ERR_UNREACH) {
    (void)PMIx_Finalize(nullptr, 0);  // PMIx is initialized even so, for this process alone.
    return fail(
        Status::kNotFound, kCall, 0,
        "there is no PMIx server: start the program by mpirun, srun --mpi=pmix or prun, or use another carrier");
  }
  if (initialized != PMIX_SUCCESS)
    return fail_pmix("PMIx_Init", initialized, "check that launcher and program have the same PMIx");
  const auto size = size_of_job(self);
  if (!size) {
    (void)PMIx_Finalize(nullptr, 0);
    return std::unexpected(size.error());
  }
  options.id = self.rank;
  options.processes = *size;
  return std::make_unique<PmixCarrier>(self, *size, options.job);
}

}  // namespace verbena::mesh
