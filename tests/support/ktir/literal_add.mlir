// SPDX-License-Identifier: Apache-2.0
// Addition of two 96 x 64 matrices at literal addresses, in elements; a 3 x 2 grid of compute tiles with axis 0 fastest.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 95 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

module {
  func.func @add() attributes {grid = [3, 2]} {
    %a = arith.constant 1024 : index
    %b = arith.constant 12288 : index
    %c = arith.constant 18432 : index
    %size = arith.constant 32 : index
    %id:2 = ktdp.get_compute_tile_id : index, index
    %i = arith.muli %id#0, %size : index
    %j = arith.muli %id#1, %size : index
    %A = ktdp.construct_memory_view %a, sizes: [96, 64], strides: [64, 1] {coordinate_set = #matrix, memory_space = #ktdp.spyre_memory_space<HBM>} : memref<96x64xf16>
    %B = ktdp.construct_memory_view %b, sizes: [96, 64], strides: [64, 1] {coordinate_set = #matrix, memory_space = #ktdp.spyre_memory_space<HBM>} : memref<96x64xf16>
    %C = ktdp.construct_memory_view %c, sizes: [96, 64], strides: [64, 1] {coordinate_set = #matrix, memory_space = #ktdp.spyre_memory_space<HBM>} : memref<96x64xf16>
    %at = ktdp.construct_access_tile %A[%i, %j] {access_tile_set = #tile, access_tile_order = #order} : memref<96x64xf16> -> !ktdp.access_tile<32x32xindex>
    %bt = ktdp.construct_access_tile %B[%i, %j] {access_tile_set = #tile, access_tile_order = #order} : memref<96x64xf16> -> !ktdp.access_tile<32x32xindex>
    %ct = ktdp.construct_access_tile %C[%i, %j] {access_tile_set = #tile, access_tile_order = #order} : memref<96x64xf16> -> !ktdp.access_tile<32x32xindex>
    %x = ktdp.load %at : !ktdp.access_tile<32x32xindex> -> tensor<32x32xf16>
    %y = ktdp.load %bt : !ktdp.access_tile<32x32xindex> -> tensor<32x32xf16>
    %empty = tensor.empty() : tensor<32x32xf16>
    %z = linalg.add ins(%x, %y : tensor<32x32xf16>, tensor<32x32xf16>) outs(%empty : tensor<32x32xf16>) -> tensor<32x32xf16>
    ktdp.store %z, %ct : tensor<32x32xf16>, !ktdp.access_tile<32x32xindex>
    return
  }
}
