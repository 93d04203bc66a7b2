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
// A handle may end in a thread that serves others, which waits for no peer, and it ends no connection. An arena's pages
// are its peers', too: nothing is corrupted when this process unmaps them. Who uses memory again deregisters it with a
// deadline.
void destroy(Nic& nic, ibv_mw* mw) noexcept { (void)nic.dealloc_mw(mw, Deadline::now()); }
void destroy(Nic& nic, ibv_mr* mr) noexcept { (void)nic.dereg_mr(mr, Deadline::now()); }

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
