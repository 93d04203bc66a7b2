// The real libibverbs behind the table, in builds that have it (Meson option `verbs`).
#include "nic/verbs/library.hpp"

#include "nic/verbs/verbs_nic.hpp"

namespace verbena::nic {

namespace {

// Some of these are macros or inline functions, so each has a function of its own to be pointed to.
constexpr verbs::VerbsLibrary kLibrary = {
    .device = {.get_device_list = [](int* count) { return ibv_get_device_list(count); },
               .free_device_list = [](ibv_device** list) { ibv_free_device_list(list); },
               .open_device = [](ibv_device* device) { return ibv_open_device(device); },
               .close_device = [](ibv_context* context) { return ibv_close_device(context); },
               .query_device = [](ibv_context* context,
                                  ibv_device_attr* attr) { return ibv_query_device(context, attr); },
               .query_port = [](ibv_context* context, std::uint8_t port,
                                ibv_port_attr* attr) { return ibv_query_port(context, port, attr); },
               .query_gid_table =
                   [](ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries) {
                     return ibv_query_gid_table(context, entries, max_entries, 0);
                   },
               .get_async_event = [](ibv_context* context,
                                     ibv_async_event* event) { return ibv_get_async_event(context, event); },
               .ack_async_event = [](ibv_async_event* event) { ibv_ack_async_event(event); }},
    .alloc_pd = [](ibv_context* context) { return ibv_alloc_pd(context); },
    .dealloc_pd = [](ibv_pd* pd) { return ibv_dealloc_pd(pd); },
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
    // The one that takes optional access flags, and drops them by itself on a kernel that does not know them.
    .reg_mr = [](ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                 unsigned access) { return ibv_reg_mr_iova2(pd, address, length, iova, access); },
    .dereg_mr = [](ibv_mr* mr) { return ibv_dereg_mr(mr); },
    .alloc_mw = [](ibv_pd* pd, ibv_mw_type type) { return ibv_alloc_mw(pd, type); },
    .dealloc_mw = [](ibv_mw* mw) { return ibv_dealloc_mw(mw); },
    .create_comp_channel = [](ibv_context* context) { return ibv_create_comp_channel(context); },
    .destroy_comp_channel = [](ibv_comp_channel* channel) { return ibv_destroy_comp_channel(channel); },
    .get_cq_event =
        [](ibv_comp_channel* channel, ibv_cq** cq) {
          void* cookie = nullptr;
          return ibv_get_cq_event(channel, cq, &cookie);
        },
    .ack_cq_events = [](ibv_cq* cq, unsigned count) { ibv_ack_cq_events(cq, count); },
    .create_cq = [](ibv_context* context, int cqe,
                    ibv_comp_channel* channel) { return ibv_create_cq(context, cqe, nullptr, channel, 0); },
    .destroy_cq = [](ibv_cq* cq) { return ibv_destroy_cq(cq); },
    .create_srq = [](ibv_pd* pd, ibv_srq_init_attr* attr) { return ibv_create_srq(pd, attr); },
    .destroy_srq = [](ibv_srq* srq) { return ibv_destroy_srq(srq); },
    .create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attr) { return ibv_create_qp(pd, attr); },
    .modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) { return ibv_modify_qp(qp, attr, mask); },
    .query_qp =
        [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
          ibv_qp_init_attr init{};
          return ibv_query_qp(qp, attr, mask, &init);
        },
    .destroy_qp = [](ibv_qp* qp) { return ibv_destroy_qp(qp); },
};

}  // namespace

Result<std::unique_ptr<Nic>> open_verbs(const VerbsOptions& options) { return verbs::open_with(kLibrary, options); }

Result<std::vector<DeviceSummary>> list_devices() { return verbs::list_with(kLibrary); }

}  // namespace verbena::nic
