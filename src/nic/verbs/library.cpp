// The real libibverbs behind the table, in builds that have it (Meson option `verbs`).
#include "nic/verbs/library.hpp"

#include "nic/verbs/verbs_nic.hpp"

namespace verbena::nic {

namespace {

// Macros and inline functions get wrappers, so that the table can point to them.
constexpr verbs::VerbsLibrary kLibrary = {
    .device = {.get_device_list = &ibv_get_device_list,
               .free_device_list = &ibv_free_device_list,
               .open_device = &ibv_open_device,
               .close_device = &ibv_close_device,
               .query_device = &ibv_query_device,
               .query_port = [](ibv_context* context, std::uint8_t port,
                                ibv_port_attr* attr) { return ibv_query_port(context, port, attr); },
               .query_gid_table =
                   [](ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries) {
                     return ibv_query_gid_table(context, entries, max_entries, 0);
                   },
               .get_async_event = &ibv_get_async_event,
               .ack_async_event = &ibv_ack_async_event},
    .alloc_pd = &ibv_alloc_pd,
    .dealloc_pd = &ibv_dealloc_pd,
    .alloc_td =
        [](ibv_context* context) {
          ibv_td_init_attr attr{};
          return ibv_alloc_td(context, &attr);
        },
    .dealloc_td = [](ibv_td* td) { return ibv_dealloc_td(td); },
    .alloc_parent_domain =
        [](ibv_context* context, ibv_pd* pd, ibv_td* td) {
          ibv_parent_domain_init_attr attr{};
          attr.pd = pd;
          attr.td = td;
          return ibv_alloc_parent_domain(context, &attr);
        },
    // This function takes optional access flags, and drops them itself on a kernel that does not know them.
    .reg_mr = &ibv_reg_mr_iova2,
    .dereg_mr = &ibv_dereg_mr,
    .alloc_mw = [](ibv_pd* pd, ibv_mw_type type) { return ibv_alloc_mw(pd, type); },
    .dealloc_mw = [](ibv_mw* mw) { return ibv_dealloc_mw(mw); },
    .create_comp_channel = &ibv_create_comp_channel,
    .destroy_comp_channel = &ibv_destroy_comp_channel,
    .get_cq_event =
        [](ibv_comp_channel* channel, ibv_cq** cq) {
          void* cookie = nullptr;
          return ibv_get_cq_event(channel, cq, &cookie);
        },
    .ack_cq_events = &ibv_ack_cq_events,
    .create_cq = [](ibv_context* context, int cqe,
                    ibv_comp_channel* channel) { return ibv_create_cq(context, cqe, nullptr, channel, 0); },
    .destroy_cq = &ibv_destroy_cq,
    .create_srq = &ibv_create_srq,
    .destroy_srq = &ibv_destroy_srq,
    .create_qp = &ibv_create_qp,
    .modify_qp = &ibv_modify_qp,
    .query_qp =
        [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
          ibv_qp_init_attr init{};
          return ibv_query_qp(qp, attr, mask, &init);
        },
    .destroy_qp = &ibv_destroy_qp,
};

}  // namespace

Result<std::unique_ptr<Nic>> open_verbs(const VerbsOptions& options) { return verbs::open_with(kLibrary, options); }

Result<std::vector<DeviceSummary>> list_devices() { return verbs::list_with(kLibrary); }

}  // namespace verbena::nic
