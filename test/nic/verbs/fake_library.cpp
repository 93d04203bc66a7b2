#include "fake_library.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace verbena::nic::verbs {

namespace {

FakeLibrary* current = nullptr;

/// A counter that reads as many times as it was signalled.
int make_counter() { return ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC); }
void add_to(int fd) {
  const std::uint64_t one = 1;
  if (::write(fd, &one, sizeof one) != sizeof one) std::abort();
}
bool take_from(int fd) {
  std::uint64_t value = 0;
  return ::read(fd, &value, sizeof value) == sizeof value;
}

struct FakeContext : ibv_context {
  FakeDevice* fake = nullptr;
  FakeContext() : ibv_context{} { async_fd = make_counter(); }
  ~FakeContext() { ::close(async_fd); }
};
struct FakeChannel : ibv_comp_channel {
  FakeChannel() : ibv_comp_channel{} { fd = make_counter(); }
  ~FakeChannel() { ::close(fd); }
};

}  // namespace

FakeDevice::FakeDevice(const char* name, std::vector<FakePort> with_ports) : ports(std::move(with_ports)) {
  std::strncpy(base.name, name, sizeof base.name - 1);
  attr.max_qp = 1000;
  attr.max_cq = 900;
  attr.max_mr = 800;
  attr.max_pd = 700;
  attr.max_qp_wr = 4096;
  attr.max_cqe = 60000;
  attr.max_sge = 30;
  attr.max_sge_rd = 20;
  attr.max_qp_rd_atom = 16;
  attr.max_qp_init_rd_atom = 12;
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.phys_port_cnt = static_cast<std::uint8_t>(ports.size());
}

ibv_gid_entry ipv4_gid(std::uint32_t index, std::uint8_t last) {
  ibv_gid_entry entry{};
  entry.gid_index = index;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = 1;  // lo is there in every network namespace.
  const std::array<std::uint8_t, 16> bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, last};
  std::memcpy(entry.gid.raw, bytes.data(), bytes.size());
  return entry;
}

template <class T>
T* FakeLibrary::make(const char* kind, std::shared_ptr<T> object) {
  T* raw = object.get();
  live_[raw] = {kind, std::move(object)};
  return raw;
}

bool FakeLibrary::fails(int& counter, int at) {
  if (++counter != at) return false;
  errno = fail_errno;
  return true;
}

int FakeLibrary::release(void* object) {
  const std::lock_guard lock(mutex_);
  if (fails(releases, fail_release)) return fail_errno;
  return live_.erase(object) == 1 ? 0 : EINVAL;
}

std::size_t FakeLibrary::live() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}
std::size_t FakeLibrary::live(const std::string& kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(live_.begin(), live_.end(), [&](const auto& one) { return one.second.kind == kind; }));
}
int FakeLibrary::unacknowledged() const {
  const std::lock_guard lock(mutex_);
  return async_.unacknowledged + unacknowledged_cq_;
}
void FakeLibrary::async(const ibv_async_event& event) {
  const std::lock_guard lock(mutex_);
  async_.events.push_back(event);
  add_to(async_.fd);
}
void FakeLibrary::remove_device() {
  const std::lock_guard lock(mutex_);
  async_.is_removed = true;
  add_to(async_.fd);
}
void FakeLibrary::complete(ibv_cq* cq) {
  const std::lock_guard lock(mutex_);
  completions_[cq->channel].push_back(cq);
  add_to(cq->channel->fd);
}
void FakeLibrary::break_channel(ibv_comp_channel* channel) {
  const std::lock_guard lock(mutex_);
  broken_.insert(channel);
  add_to(channel->fd);
}
void FakeLibrary::make_spurious(ibv_comp_channel* channel) { add_to(channel->fd); }

/// The table's functions: friends, so that the fake's state stays its own.
struct FakeLibrary::Table {
  static FakeLibrary& fake() { return *current; }

  static ibv_device** get_device_list(int* count) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.list_errno != 0) {
      errno = f.list_errno;
      return nullptr;
    }
    if (f.fails(f.acquires, f.fail_acquire)) return nullptr;
    f.pointers_.clear();
    for (const auto& device : f.devices) f.pointers_.push_back(&device->base);
    f.pointers_.push_back(nullptr);
    *count = static_cast<int>(f.devices.size());
    f.make("list", std::make_shared<int>());
    return f.pointers_.data();
  }
  static void free_device_list(ibv_device**) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    const auto at = std::ranges::find_if(f.live_, [](const auto& one) { return one.second.kind == "list"; });
    if (at == f.live_.end()) std::abort();
    f.live_.erase(at);
  }
  static ibv_context* open_device(ibv_device* device) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails(f.acquires, f.fail_acquire)) return nullptr;
    const auto at = std::ranges::find_if(f.devices, [&](const auto& one) { return &one->base == device; });
    if ((*at)->open_errno != 0) {
      errno = (*at)->open_errno;
      return nullptr;
    }
    FakeContext* context = f.make("context", std::make_shared<FakeContext>());
    context->device = device;
    context->fake = at->get();
    f.async_.fd = context->async_fd;
    return context;
  }
  static int close_device(ibv_context* context) { return fake().release(static_cast<FakeContext*>(context)); }
  static FakeDevice& device_of(ibv_context* context) { return *static_cast<FakeContext*>(context)->fake; }

  /// Of calls that make nothing: 0, or the injected errno.
  static int ask() {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    return f.fails(f.acquires, f.fail_acquire) ? f.fail_errno : 0;
  }
  static int query_device(ibv_context* context, ibv_device_attr* attr) {
    *attr = device_of(context).attr;
    return ask();
  }
  static int query_port(ibv_context* context, std::uint8_t number, ibv_port_attr* attr) {
    const FakePort& port = device_of(context).ports.at(number - 1U);
    *attr = {};
    attr->state = port.state;
    attr->link_layer = port.link_layer;
    attr->lid = port.lid;
    attr->flags = port.flags;
    attr->active_mtu = IBV_MTU_2048;
    attr->max_msg_sz = 1U << 30;
    attr->gid_tbl_len = 1024;
    return ask();
  }
  static ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries) {
    if (const int failed = ask(); failed != 0) return -failed;
    if (max_entries * sizeof *entries > UINT16_MAX) return -EINVAL;  // As the kernel's attribute is.
    std::size_t count = 0;
    for (std::size_t i = 0; i < device_of(context).ports.size(); ++i) {
      for (ibv_gid_entry entry : device_of(context).ports[i].gids) {
        if (count == max_entries) return -EINVAL;
        entry.port_num = static_cast<std::uint32_t>(i + 1);
        entries[count++] = entry;
      }
    }
    return static_cast<ssize_t>(count);
  }
  static int get_async_event(ibv_context* context, ibv_async_event* event) {
    FakeLibrary& f = fake();
    if (!take_from(context->async_fd)) return -1;
    const std::lock_guard lock(f.mutex_);
    if (f.async_.events.empty()) {  // Gone with its object, or with the device.
      errno = f.async_.is_removed ? EIO : EAGAIN;
      return -1;
    }
    *event = f.async_.events.front();
    f.async_.events.erase(f.async_.events.begin());
    ++f.async_.unacknowledged;
    return 0;
  }
  static void ack_async_event(ibv_async_event*) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    --f.async_.unacknowledged;
  }
  /// As the library does when an object goes: no event of it may be in somebody's hands, and none may come any more.
  static void settle_events(const void* object) {
    FakeLibrary& f = fake();
    for (;;) {
      const std::lock_guard lock(f.mutex_);
      std::erase_if(f.async_.events, [&](const ibv_async_event& event) { return event.element.qp == object; });
      if (f.async_.unacknowledged == 0) return;
      std::this_thread::yield();
    }
  }

  template <class T>
  static T* make_in(ibv_context* context, const char* kind) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    if (f.fails(f.acquires, f.fail_acquire)) return nullptr;
    T* object = f.make(kind, std::make_shared<T>());
    object->context = context;
    return object;
  }
  static ibv_pd* alloc_pd(ibv_context* context) { return make_in<ibv_pd>(context, "pd"); }
  static int dealloc_pd(ibv_pd* pd) { return fake().release(pd); }
  static ibv_td* alloc_td(ibv_context* context) {
    if (fake().has_thread_domains) return make_in<ibv_td>(context, "td");
    errno = EOPNOTSUPP;
    return nullptr;
  }
  static int dealloc_td(ibv_td* td) { return fake().release(td); }
  static ibv_pd* alloc_parent_domain(ibv_context* context, ibv_pd*, ibv_td*) {
    return make_in<ibv_pd>(context, "parent");
  }
  static ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t, unsigned access) {
    FakeLibrary& f = fake();
    if (f.refuses_optional_access && (access & IBV_ACCESS_OPTIONAL_RANGE) != 0) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    if (length > f.max_locked) {
      errno = ENOMEM;
      return nullptr;
    }
    auto* mr = make_in<ibv_mr>(pd->context, "mr");
    if (mr == nullptr) return nullptr;
    mr->pd = pd;
    mr->addr = address;
    mr->length = length;
    mr->lkey = f.next_number_++;
    mr->rkey = f.next_number_++;
    f.last_access = access;
    return mr;
  }
  static int dereg_mr(ibv_mr* mr) { return fake().release(mr); }
  static ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
    auto* mw = make_in<ibv_mw>(pd->context, "mw");
    if (mw == nullptr) return nullptr;
    mw->pd = pd;
    mw->type = type;
    mw->rkey = fake().next_number_++;
    return mw;
  }
  static int dealloc_mw(ibv_mw* mw) { return fake().release(mw); }
  static ibv_comp_channel* create_comp_channel(ibv_context* context) {
    return make_in<FakeChannel>(context, "channel");
  }
  static int destroy_comp_channel(ibv_comp_channel* channel) {
    return fake().release(static_cast<FakeChannel*>(channel));
  }
  static int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq) {
    FakeLibrary& f = fake();
    if (!take_from(channel->fd)) return -1;
    const std::lock_guard lock(f.mutex_);
    auto& waiting = f.completions_[channel];
    if (f.broken_.contains(channel) || waiting.empty()) {
      errno = f.broken_.contains(channel) ? EIO : EAGAIN;
      return -1;
    }
    *cq = waiting.front();
    waiting.erase(waiting.begin());
    ++f.unacknowledged_cq_;
    return 0;
  }
  static void ack_cq_events(ibv_cq*, unsigned count) {
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    f.unacknowledged_cq_ -= static_cast<int>(count);
  }
  static ibv_cq* create_cq(ibv_context* context, int cqe, ibv_comp_channel* channel) {
    auto* cq = make_in<ibv_cq>(context, "cq");
    if (cq == nullptr) return nullptr;
    cq->channel = channel;
    cq->cqe = cqe;
    return cq;
  }
  static int destroy_cq(ibv_cq* cq) {
    settle_events(cq);
    return fake().release(cq);
  }
  static ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr*) { return make_in<ibv_srq>(pd->context, "srq"); }
  static int destroy_srq(ibv_srq* srq) {
    settle_events(srq);
    return fake().release(srq);
  }
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
    FakeLibrary& f = fake();
    if (attr->cap.max_inline_data > f.max_inline) {
      errno = EINVAL;
      return nullptr;
    }
    auto* qp = make_in<ibv_qp>(pd->context, "qp");
    if (qp == nullptr) return nullptr;
    qp->qp_num = f.next_number_++;
    qp->state = IBV_QPS_RESET;
    f.last_qp_domain = pd;
    // Rounded up, as devices do.
    if (attr->cap.max_inline_data != 0) attr->cap.max_inline_data = f.max_inline;
    attr->cap.max_send_wr += 1;
    return qp;
  }
  static int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    if (const int failed = ask(); failed != 0) return failed;
    FakeLibrary& f = fake();
    const std::lock_guard lock(f.mutex_);
    f.last_modify = *attr;
    f.last_modify_mask = mask;
    if ((mask & IBV_QP_STATE) != 0) qp->state = attr->qp_state;
    return 0;
  }
  static int query_qp(ibv_qp* qp, ibv_qp_attr* attr, int) {
    const std::lock_guard lock(fake().mutex_);
    attr->qp_state = qp->state;
    return 0;
  }
  static int destroy_qp(ibv_qp* qp) {
    settle_events(qp);
    return fake().release(qp);
  }
};

FakeLibrary::FakeLibrary()
    : table_{.device = {.get_device_list = Table::get_device_list,
                        .free_device_list = Table::free_device_list,
                        .open_device = Table::open_device,
                        .close_device = Table::close_device,
                        .query_device = Table::query_device,
                        .query_port = Table::query_port,
                        .query_gid_table = Table::query_gid_table,
                        .get_async_event = Table::get_async_event,
                        .ack_async_event = Table::ack_async_event},
             .alloc_pd = Table::alloc_pd,
             .dealloc_pd = Table::dealloc_pd,
             .alloc_td = Table::alloc_td,
             .dealloc_td = Table::dealloc_td,
             .alloc_parent_domain = Table::alloc_parent_domain,
             .reg_mr = Table::reg_mr,
             .dereg_mr = Table::dereg_mr,
             .alloc_mw = Table::alloc_mw,
             .dealloc_mw = Table::dealloc_mw,
             .create_comp_channel = Table::create_comp_channel,
             .destroy_comp_channel = Table::destroy_comp_channel,
             .get_cq_event = Table::get_cq_event,
             .ack_cq_events = Table::ack_cq_events,
             .create_cq = Table::create_cq,
             .destroy_cq = Table::destroy_cq,
             .create_srq = Table::create_srq,
             .destroy_srq = Table::destroy_srq,
             .create_qp = Table::create_qp,
             .modify_qp = Table::modify_qp,
             .query_qp = Table::query_qp,
             .destroy_qp = Table::destroy_qp} {
  if (current != nullptr) std::abort();
  current = this;
}

FakeLibrary::~FakeLibrary() { current = nullptr; }

}  // namespace verbena::nic::verbs
