// SPDX-License-Identifier: Apache-2.0
// The same reduction in four groups of four, in the older spelling that the lenient mode accepts: the partial's type before
// the future's, a future without parentheses, a result without the leading unit dimension.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#row = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 127 >= 0)>
#vector = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
#groups = affine_set<(g) : (g >= 0, -g + 3 >= 0)>
#members = affine_set<(i)[g] : (i - 4 * g >= 0, -i + 4 * g + 3 >= 0)>

func.func @ring_reduce_older(%x: index, %y: index) attributes {grid = [16]} {
  %c0 = arith.constant 0 : index
  %id = ktdp.get_compute_tile_id : index
  %zero = arith.constant dense<0.0> : tensor<1x128xf16>
  %X = ktdp.construct_memory_view %x, sizes: [16, 128], strides: [128, 1] {coordinate_set = #matrix, memory_space = #ktdp.spyre_memory_space<HBM>} : memref<16x128xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [16, 128], strides: [128, 1] {coordinate_set = #matrix, memory_space = #ktdp.spyre_memory_space<HBM>} : memref<16x128xf16>
  %xt = ktdp.construct_access_tile %X[%id, %c0] {access_tile_set = #row, access_tile_order = #order} : memref<16x128xf16> -> !ktdp.access_tile<1x128xindex>
  %yt = ktdp.construct_access_tile %Y[%id, %c0] {access_tile_set = #row, access_tile_order = #order} : memref<16x128xf16> -> !ktdp.access_tile<1x128xindex>
  %v = ktdp.load %xt : !ktdp.access_tile<1x128xindex> -> tensor<1x128xf16>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #members : tensor<1x128xf16> -> !ktdp.tile_future<tensor<1x128xf16>, groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<1x128xf16>
  }
  %s = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = #members, identity(%zero : tensor<1x128xf16>)
      : !ktdp.tile_future<tensor<1x128xf16>, groups = #groups> -> tensor<128xf16> {
  ^bb0(%l: tensor<1x128xf16>, %r: tensor<1x128xf16>):
    %t = arith.addf %l, %r : tensor<1x128xf16>
    ktdp.yield_reduced %t : tensor<1x128xf16>
  }
  %e = tensor.expand_shape %s [[0, 1]] : tensor<128xf16> into tensor<1x128xf16>
  ktdp.store %e, %yt : tensor<1x128xf16>, !ktdp.access_tile<1x128xindex>
  return
}
