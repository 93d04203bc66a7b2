#include "fixture.hpp"

#include "device.hpp"
#include "sim_nic.hpp"

#include <sanitized.hpp>

#include <algorithm>
#include <thread>

namespace verbena::nic::conformance {

using test::device_under_test;
using test::open_device_under_test;

namespace {

// The sequence numbers wrap soon after the start.
constexpr std::uint32_t kFirstPsn = 0xFFFFF0;

// What a connection of either type needs, and a reliable one besides.
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_SQ_PSN;
constexpr int kRtsMaskOfReliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

Result<std::unique_ptr<Nic>> open_soft_default() { return open_soft(SoftOptions{}); }

testing::AssertionResult describe(const ibv_wc& wc, std::uint64_t wr_id, const char* expected) {
  return testing::AssertionFailure() << "completion of " << wc.wr_id << ", status " << wc.status << ", opcode "
                                     << wc.opcode << "; expected " << wr_id << ' ' << expected;
}

int poll_into(ibv_cq* cq, std::deque<ibv_wc>& queue) {
  if (cq == nullptr) return 0;
  ibv_wc completions[16];
  const int count = ibv_poll_cq(cq, 16, completions);
  if (count < 0) {
    ADD_FAILURE() << "ibv_poll_cq: " << count;
    return 0;
  }
  queue.insert(queue.end(), completions, completions + count);
  return count;
}

}  // namespace

std::vector<Case> every_case() {
  std::vector<Case> cases = {{"soft", Layout::kTwoNics, open_soft_default, 0},
                             {"soft", Layout::kOneNic, open_soft_default, 0}};
  // Chaos is the soft NIC's. A sanitizer has the simulated one's own suites, and takes minutes for all of these.
  if (!test::in_chaos() && !test::kIsSanitized) {
    cases.push_back({"sim", Layout::kTwoNics, sim::open_simulated, 0});
    cases.push_back({"sim", Layout::kOneNic, sim::open_simulated, 0});
  }
  if (device_under_test() != nullptr) {
    cases.push_back({"verbs", Layout::kTwoNics, open_device_under_test, 0});
    cases.push_back({"verbs", Layout::kOneNic, open_device_under_test, 0});
  }
  return cases;
}

std::vector<Case> two_nic_cases() {
  std::vector<Case> cases = every_case();
  std::erase_if(cases, [](const Case& one) { return one.layout != Layout::kTwoNics; });
  return cases;
}

std::vector<Case> soft_cases() {
  std::vector<Case> cases = every_case();
  std::erase_if(cases, [](const Case& one) { return std::string_view(one.nic) != "soft"; });
  return cases;
}

std::vector<Case> two_soft_nic_cases() {
  std::vector<Case> cases = soft_cases();
  std::erase_if(cases, [](const Case& one) { return one.layout != Layout::kTwoNics; });
  return cases;
}

Deadline soon() noexcept { return Deadline::after(30s); }

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.nic) + (info.param.layout == Layout::kTwoNics ? "_two_nics" : "_one_nic");
}

// --- Side -------------------------------------------------------------------------------------------------------

void Side::poll() {
  poll_into(send_cq.get(), sent);
  poll_into(recv_cq.get(), received);
}

void Side::sleep_until_sent() {
  const Deadline deadline = soon();
  while (sent.empty()) {
    ASSERT_EQ(ibv_req_notify_cq(send_cq.get(), 0), 0);
    poll();
    if (!sent.empty()) return;
    ASSERT_OK(nic->wait(channel.get(), deadline));
    poll();
  }
}

int Side::post_recv(std::uint64_t wr_id, std::initializer_list<ibv_sge> sges) const {
  std::vector<ibv_sge> list(sges);
  std::erase_if(list, [](const ibv_sge& one) { return one.length == 0; });
  ibv_recv_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = list.data();
  wr.num_sge = static_cast<int>(list.size());
  ibv_recv_wr* bad = nullptr;
  const int refused = ibv_post_recv(qp.get(), &wr, &bad);
  if (refused != 0) {
    EXPECT_EQ(bad, &wr);
  }
  return refused;
}

Mr Side::reg(std::size_t offset, std::size_t length, int access) const { return reg(pd, offset, length, access); }

Mr Side::reg(const Pd& other_pd, std::size_t offset, std::size_t length, int access) const {
  const auto region = nic->reg_mr(other_pd.get(), at(offset), length, address(offset), access);
  EXPECT_OK(region);
  return region ? Mr(*nic, *region) : Mr();
}

void Side::close() {
  qp.reset();
  send_cq.reset();
  recv_cq.reset();
  channel.reset();
  mr.reset();
  pd.reset();
  if (attached) {
    EXPECT_OK(nic->detach(memory_id));
  }
  attached = false;
  arena = host::Arena();
  sent.clear();
  received.clear();
  nic = nullptr;
}

// --- requests and completions -----------------------------------------------------------------------------------

int Request::post(ibv_qp* qp) {
  ibv_send_wr* bad = nullptr;
  const int refused = ibv_post_send(qp, &prepare(), &bad);
  if (refused != 0) {
    EXPECT_EQ(bad, &wr_);
  }
  return refused;
}

int post_list(ibv_qp* qp, std::span<Request> requests, std::size_t& bad) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i].prepare().next = i + 1 < requests.size() ? &requests[i + 1].prepare() : nullptr;
  ibv_send_wr* refused = nullptr;
  const int result = ibv_post_send(qp, &requests.front().prepare(), &refused);
  bad = requests.size();
  for (std::size_t i = 0; result != 0 && i < requests.size(); ++i)
    if (refused == &requests[i].prepare()) bad = i;
  return result;
}

testing::AssertionResult succeeded(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_opcode opcode) {
  if (wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode) return testing::AssertionSuccess();
  return describe(wc, wr_id, "to succeed with opcode ") << opcode;
}

testing::AssertionResult failed(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_status status) {
  if (wc.wr_id == wr_id && wc.status == status) return testing::AssertionSuccess();
  return describe(wc, wr_id, "with status ") << status;
}

// --- queue pair states ------------------------------------------------------------------------------------------

Result<void> to_reset(Nic& nic, ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  return nic.modify_qp(qp, attr, IBV_QP_STATE, soon());
}

Result<void> to_init(Nic& nic, ibv_qp* qp, const SideOptions& options) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.qp_access_flags = static_cast<unsigned>(options.qp_access);
  return nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, soon());
}

Result<void> to_rtr(Nic& nic, ibv_qp* qp, const QpAddress& peer, std::uint8_t sgid_index, const SideOptions& options,
                    Deadline deadline) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer.qp_num;
  attr.rq_psn = kFirstPsn;
  attr.max_dest_rd_atomic = static_cast<std::uint8_t>(std::min(8U, nic.limits().max_rd_atomic));
  attr.min_rnr_timer = options.min_rnr_timer;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.grh.dgid = peer.gid;
  attr.ah_attr.grh.sgid_index = sgid_index;
  attr.ah_attr.grh.hop_limit = 64;
  return nic.modify_qp(qp, attr,
                       kRtrMask | (qp->qp_type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
                       deadline);
}

Result<void> to_rts(Nic& nic, ibv_qp* qp, const SideOptions& options) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_count;
  attr.rnr_retry = options.rnr_retry;
  attr.sq_psn = kFirstPsn;
  attr.max_rd_atomic = static_cast<std::uint8_t>(std::min(8U, nic.limits().max_rd_atomic));
  return nic.modify_qp(qp, attr, kRtsMask | (qp->qp_type == IBV_QPT_RC ? kRtsMaskOfReliable : 0), soon());
}

Result<void> to_error(Nic& nic, ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return nic.modify_qp(qp, attr, IBV_QP_STATE, soon());
}

// --- Bare -------------------------------------------------------------------------------------------------------

void Bare::SetUp() {
  auto first = GetParam().open();
  ASSERT_OK(first);
  nic_a_ = std::move(*first);
  a.nic = b.nic = nic_a_.get();
  if (GetParam().layout == Layout::kOneNic) return;
  auto second = GetParam().open();
  ASSERT_OK(second);
  nic_b_ = std::move(*second);
  b.nic = nic_b_.get();
}

void Bare::TearDown() {
  a.close();
  b.close();
  for (Nic* nic : {nic_a_.get(), nic_b_.get()}) {
    if (nic == nullptr) continue;
    // What is known of peers may go later: the other side's NIC has to hear of it.
    const Deadline deadline = soon();
    while (nic->objects() != Nic::Objects{} && nic->objects().pds == 0 && !deadline.passed()) std::this_thread::yield();
    const Nic::Objects left = nic->objects();
    EXPECT_EQ(left.pds, 0U);
    EXPECT_EQ(left.mrs, 0U);
    EXPECT_EQ(left.cqs, 0U);
    EXPECT_EQ(left.qps, 0U);
    EXPECT_EQ(left.channels, 0U);
    EXPECT_EQ(left.srqs, 0U);
    EXPECT_EQ(left.mws, 0U);
    EXPECT_EQ(left.arenas, 0U);
    EXPECT_EQ(left.imports, 0U);
    EXPECT_EQ(left.peers, 0U);
  }
  nic_a_.reset();
  nic_b_.reset();
}

void Bare::make(Side& side, const SideOptions& options) {
  side.options = options;
  auto arena = host::Arena::create({.size_bytes = options.arena_bytes,
                                    .share = host::Share::kReadWrite,
                                    .prefault_threads = 1,
                                    .name = "conformance"});
  ASSERT_OK(arena);
  side.arena = std::move(*arena);
  const auto memory_id = side.nic->attach(side.arena, {.to = Grant::To::kAnyPeer});
  ASSERT_OK(memory_id);
  side.memory_id = *memory_id;
  side.attached = true;

  const auto pd = side.nic->alloc_pd();
  ASSERT_OK(pd);
  side.pd = Pd(*side.nic, *pd);
  side.mr = side.reg(0, side.arena.size(), options.region_access);
  ASSERT_TRUE(side.mr);
  const auto channel = side.nic->create_channel();
  ASSERT_OK(channel);
  side.channel = Channel(*side.nic, *channel);
  const auto send_cq = side.nic->create_cq(options.cqe, *channel);
  ASSERT_OK(send_cq);
  side.send_cq = Cq(*side.nic, *send_cq);
  const auto recv_cq = side.nic->create_cq(options.cqe, *channel);
  ASSERT_OK(recv_cq);
  side.recv_cq = Cq(*side.nic, *recv_cq);

  side.qp_options = {.send_cq = *send_cq,
                     .recv_cq = *recv_cq,
                     .type = options.type,
                     .max_send_wr = options.send_depth,
                     .max_recv_wr = options.recv_depth,
                     .max_send_sge = options.max_sge,
                     .max_recv_sge = options.max_sge,
                     .max_inline = options.max_inline,
                     .signal_all = options.signal_all};
  const auto qp = side.nic->create_qp(side.pd.get(), side.qp_options);
  ASSERT_OK(qp);
  side.qp = Qp(*side.nic, *qp);
}

Qp Bare::make_qp(Side& side, QpOptions options) {
  const auto qp = side.nic->create_qp(side.pd.get(), options);
  EXPECT_OK(qp);
  return qp ? Qp(*side.nic, *qp) : Qp();
}

void Bare::connect(Side& one, ibv_qp* one_qp, Side& other, ibv_qp* other_qp) {
  const std::uint8_t sgid_index = GetParam().sgid_index;
  ASSERT_OK(to_init(*one.nic, one_qp, one.options));
  ASSERT_OK(to_init(*other.nic, other_qp, other.options));
  ASSERT_OK(to_rtr(*one.nic, one_qp, other.nic->address_of(other_qp), sgid_index, one.options));
  ASSERT_OK(to_rtr(*other.nic, other_qp, one.nic->address_of(one_qp), sgid_index, other.options));
  ASSERT_OK(to_rts(*one.nic, one_qp, one.options));
  ASSERT_OK(to_rts(*other.nic, other_qp, other.options));
}

void Bare::connect() {
  ASSERT_NO_FATAL_FAILURE(connect(a, a.qp.get(), b, b.qp.get()));
  ASSERT_NO_FATAL_FAILURE(import(a, b, b.mr.get()));
  ASSERT_NO_FATAL_FAILURE(import(b, a, a.mr.get()));
}

void Bare::reconnect() {
  ASSERT_OK(to_reset(*a.nic, a.qp.get()));
  ASSERT_OK(to_reset(*b.nic, b.qp.get()));
  // Completions of before may stay in the queues: they are not of the new connection.
  poll_both();
  for (Side* side : {&a, &b}) {
    side->sent.clear();
    side->received.clear();
  }
  connect();
}

void Bare::make_pair(const SideOptions& a_options, const SideOptions& b_options) {
  ASSERT_NO_FATAL_FAILURE(make(a, a_options));
  ASSERT_NO_FATAL_FAILURE(make(b, b_options));
  ASSERT_NO_FATAL_FAILURE(connect());
}

void Bare::import(Side& side, Side& owner, const ibv_mr* region) {
  ASSERT_OK(side.nic->import_window(side.qp.get(), owner.nic->window_of(region), soon()));
}

void Bare::try_import(Side& side, Side& owner, const ibv_mr* region) {
  (void)side.nic->import_window(side.qp.get(), owner.nic->window_of(region), soon());
}

bool Bare::is_soft_roce() const { return test::is_soft_roce(*nic_a_); }

testing::AssertionResult Bare::failed_as(const ibv_wc& wc, std::uint64_t wr_id, ibv_wc_status status) const {
  const bool is_local = status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR;
  const ibv_wc_status other = is_local ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_REM_OP_ERR;
  return failed(wc, wr_id, is_soft_roce() && wc.status == other ? other : status);
}

std::uint64_t Bare::rounds(std::uint64_t count) const { return test::rounds(*nic_a_, count); }

void Bare::poll_both() {
  a.poll();
  b.poll();
}

std::vector<ibv_wc> Bare::take(std::deque<ibv_wc>& queue, std::size_t n) {
  const Deadline deadline = soon();
  while (queue.size() < n && !deadline.passed()) poll_both();
  if (queue.size() < n) {
    ADD_FAILURE() << "only " << queue.size() << " of " << n << " completions came";
    ibv_wc missing{};
    missing.status = IBV_WC_GENERAL_ERR;
    queue.resize(n, missing);
  }
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(n);
  std::vector<ibv_wc> taken(queue.begin(), end);
  queue.erase(queue.begin(), end);
  return taken;
}

std::vector<ibv_wc> Bare::sent(Side& side, std::size_t n) { return take(side.sent, n); }
std::vector<ibv_wc> Bare::received(Side& side, std::size_t n) { return take(side.received, n); }
ibv_wc Bare::sent(Side& side) { return take(side.sent, 1).front(); }
ibv_wc Bare::received(Side& side) { return take(side.received, 1).front(); }

void Bare::expect_quiet(std::chrono::milliseconds time) {
  const Deadline deadline = Deadline::after(time);
  do {
    poll_both();
  } while (!deadline.passed());
  EXPECT_TRUE(a.sent.empty());
  EXPECT_TRUE(a.received.empty());
  EXPECT_TRUE(b.sent.empty());
  EXPECT_TRUE(b.received.empty());
}

bool Bare::reaches(Side& side, ibv_qp_state state) {
  const Deadline deadline = soon();
  while (side.state() != state && !deadline.passed()) poll_both();
  return side.state() == state;
}

void Pair::SetUp() {
  ASSERT_NO_FATAL_FAILURE(Bare::SetUp());
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
}

}  // namespace verbena::nic::conformance
