// SPDX-License-Identifier: Apache-2.0
// Sum of four rows, one per compute tile; all four receive it and add it to their row. Current spelling.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#row = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 127 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
#groups = affine_set<(g) : (g == 0)>
#members = affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>

func.func @ring_reduce(%x: index, %y: index) attributes {grid = [4]} {
  %c0 = arith.constant 0 : index
  %id = ktdp.get_compute_tile_id : index
  %zero = arith.constant dense<0.0> : tensor<1x128xf16>
  %X = ktdp.construct_memory_view %x, sizes: [4, 128], strides: [128, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<4x128xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [4, 128], strides: [128, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<4x128xf16>
  %xt = ktdp.construct_access_tile %X[%id, %c0] {access_tile_set = #row, access_tile_order = #order} : memref<4x128xf16> -> <1x128xindex>
  %yt = ktdp.construct_access_tile %Y[%id, %c0] {access_tile_set = #row, access_tile_order = #order} : memref<4x128xf16> -> <1x128xindex>
  %v = ktdp.load %xt : <1x128xindex> -> tensor<1x128xf16>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #members -> <(tensor<1x128xf16>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<1x128xf16>
  }
  %s = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = #members, identity(%zero : tensor<1x128xf16>)
      : <(tensor<1x128xf16>), groups = #groups> -> tensor<1x128xf16> {
  ^bb0(%l: tensor<1x128xf16>, %r: tensor<1x128xf16>):
    %t = arith.addf %l, %r : tensor<1x128xf16>
    ktdp.yield_reduced %t : tensor<1x128xf16>
  }
  %out = arith.addf %s, %v : tensor<1x128xf16>
  ktdp.store %out, %yt : tensor<1x128xf16>, <1x128xindex>
  return
}
