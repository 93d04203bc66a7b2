#include "nic/nic.hpp"

#include "base/check.hpp"

namespace verbena::nic {

const char* to_string(Kind kind) noexcept { return kind == Kind::kSoft ? "soft" : "verbs"; }

const char* to_string(Network network) noexcept {
  switch (network) {
    case Network::kNone: return "no network";
    case Network::kInfiniBand: return "InfiniBand";
    case Network::kRoceV1: return "RoCE v1";
    case Network::kRoceV2Ipv4: return "RoCE v2 over IPv4";
    case Network::kRoceV2Ipv6: return "RoCE v2 over IPv6";
  }
  return "an unknown network";
}

// Handles destroy objects that nothing uses any more: a refusal means a broken invariant of ours.
void destroy(Nic& nic, ibv_pd* pd) noexcept { VERBENA_CHECK(nic.dealloc_pd(pd).has_value()); }
void destroy(Nic& nic, ibv_cq* cq) noexcept { VERBENA_CHECK(nic.destroy_cq(cq).has_value()); }
void destroy(Nic& nic, ibv_srq* srq) noexcept { VERBENA_CHECK(nic.destroy_srq(srq).has_value()); }
void destroy(Nic& nic, ibv_qp* qp) noexcept { VERBENA_CHECK(nic.destroy_qp(qp).has_value()); }
void destroy(Nic& nic, ibv_comp_channel* channel) noexcept { VERBENA_CHECK(nic.destroy_channel(channel).has_value()); }
void destroy(Nic& nic, ibv_mw* mw) noexcept {
  (void)nic.dealloc_mw(mw, Deadline::after(std::chrono::milliseconds{100}));  // As for a region.
}
void destroy(Nic& nic, ibv_mr* mr) noexcept {
  // If a peer stays inside the region past the deadline, its QP goes to error. The caller's arena stays mapped until
  // its own destruction, so nothing is corrupted either way.
  (void)nic.dereg_mr(mr, Deadline::after(std::chrono::milliseconds{100}));
}

Window Nic::window_of(std::uint32_t rkey, const ibv_mw_bind_info& bind) const noexcept {
  Window window = window_of(bind.mr);
  constexpr unsigned kZeroBased = IBV_ACCESS_ZERO_BASED;
  window.address = (bind.mw_access_flags & kZeroBased) != 0 ? 0 : bind.addr;
  window.length = bind.length;
  window.rkey = rkey;
  window.access = bind.mw_access_flags & ~kZeroBased;
  return window;
}

}  // namespace verbena::nic
