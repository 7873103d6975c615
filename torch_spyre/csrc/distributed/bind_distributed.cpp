// SPDX-License-Identifier: Apache-2.0
// What torch_spyre/distributed needs to make a group and to look at it.
#include <torch/csrc/utils/pybind.h>

#include "aten/errors.h"
#include "backend.h"
#include "gloo_link.h"

namespace spyre {
namespace {

namespace py = pybind11;
using card::LinkGroup;

card::CollectiveCost cost_of(const py::handle& row) {
  const auto [start, per_byte, wire, algorithm] = row.cast<std::tuple<double, double, double, std::string>>();
  return {start, per_byte, wire, algorithm};
}

std::shared_ptr<LinkGroup> make_group(int rank, int size, const std::string& name, const std::vector<int>& world_ranks,
                                      double timeout_s, const py::dict& costs, bool may_spin) {
  card::GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.world_ranks = world_ranks;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
  options.may_spin = may_spin;
  options.costs.resize(card::kCollectives);
  for (int i = 0; i < card::kCollectives; ++i) {
    const char* kind = card::name_of(static_cast<card::Collective>(i));
    if (costs.contains(kind)) options.costs[static_cast<size_t>(i)] = cost_of(costs[kind]);
  }
  return on_card([&] { return LinkGroup::make(std::move(options)); });
}

py::dict traffic_of(const LinkGroup& group) {
  const card::Traffic t = group.traffic();
  py::dict d;
  d["collectives"] = t.collectives;
  d["messages"] = t.messages;
  d["sent_bytes"] = t.sent_bytes;
  d["received_bytes"] = t.received_bytes;
  return d;
}

}  // namespace

void bind_distributed(py::module_& m) {
  bind_backend(m);
  py::class_<LinkGroup, std::shared_ptr<LinkGroup>>(m, "LinkGroup", "The ranks that one group connects.")
      .def(py::init(&make_group), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("world_ranks"),
           py::arg("timeout"), py::arg("costs"), py::arg("may_spin"))
      .def(
          "address",
          [](const LinkGroup& group) {
            const auto a = group.address();
            return std::make_tuple(a.process, a.fd, a.bytes);
          },
          "(process, file descriptor, bytes) by which ranks of the same host reach this one.")
      .def(
          "connect",
          [](LinkGroup& group, int peer, const std::tuple<int, int, uint64_t>& address) {
            const auto [process, fd, bytes] = address;
            on_card([&] { group.connect(peer, LinkGroup::Address{process, fd, bytes}); });
          },
          py::arg("peer"), py::arg("address"))
      .def(
          "connect_gloo",
          [](LinkGroup& group, int peer, const c10::intrusive_ptr<c10d::Backend>& gloo) {
            group.connect(peer, gloo_link(gloo, peer, group.bell()));
          },
          py::arg("peer"), py::arg("gloo"))
      .def(
          "backend",
          [](const std::shared_ptr<LinkGroup>& group, double timeout_s) {
            return make_backend(group, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3)));
          },
          py::arg("timeout"), "The c10d backend of this group.")
      .def("link_name", &LinkGroup::link_name, py::arg("peer"))
      .def(
          "abort",
          [](LinkGroup& group, const std::string& reason) {
            py::gil_scoped_release no_gil;
            group.abort(reason);
          },
          py::arg("reason"))
      .def("traffic", &traffic_of);
}

}  // namespace spyre
