// SPDX-License-Identifier: Apache-2.0
// The four further deliveries between four compute tiles that hold eight columns of an 8 x 32 matrix each: gather shows the
// whole matrix to all, scatter deals out the rows of tile 0, all_to_all trades columns for rows, reduce_scatter adds up and
// deals out.

#whole = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#columns = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 7 >= 0)>
#rows = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#small = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 7 >= 0)>
#deep = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 7 >= 0, d2 >= 0, -d2 + 31 >= 0)>
#slab = affine_set<(d0, d1, d2) : (d0 == 0, d1 >= 0, -d1 + 7 >= 0, d2 >= 0, -d2 + 31 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
#order3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#groups = affine_set<(g) : (g == 0)>
#all = affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>
#first = affine_set<(i)[g] : (i == 0)>

func.func @relayout(%x: index, %gathered: index, %scattered: index, %traded: index, %reduced: index) attributes {grid = [4]} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %id = ktdp.get_compute_tile_id : index
  %column = arith.muli %id, %c8 : index
  %row = arith.muli %id, %c2 : index
  %X = ktdp.construct_memory_view %x, sizes: [8, 32], strides: [32, 1] {coordinate_set = #whole, memory_space = #ktdp.memory_space<global>} : memref<8x32xf16>
  %G = ktdp.construct_memory_view %gathered, sizes: [4, 8, 32], strides: [256, 32, 1] {coordinate_set = #deep, memory_space = #ktdp.memory_space<global>} : memref<4x8x32xf16>
  %S = ktdp.construct_memory_view %scattered, sizes: [8, 8], strides: [8, 1] {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<8x8xf16>
  %T = ktdp.construct_memory_view %traded, sizes: [8, 32], strides: [32, 1] {coordinate_set = #whole, memory_space = #ktdp.memory_space<global>} : memref<8x32xf16>
  %R = ktdp.construct_memory_view %reduced, sizes: [8, 8], strides: [8, 1] {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<8x8xf16>
  %xt = ktdp.construct_access_tile %X[%c0, %column] {access_tile_set = #columns, access_tile_order = #order} : memref<8x32xf16> -> <8x8xindex>
  %v = ktdp.load %xt : <8x8xindex> -> tensor<8x8xf16>
  %zero = arith.constant dense<0.0> : tensor<8x8xf16>

  %f0 = ktdp.inter_tile_produce producer_tiles_per_group = #all -> <(tensor<8x8xf16>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<8x8xf16>
  }
  %a = ktdp.inter_tile_gather(%f0) consumer_tiles_per_group = #all, gather_dimensions = [1] : <(tensor<8x8xf16>), groups = #groups> -> tensor<8x32xf16>
  %a3 = tensor.expand_shape %a [[0, 1], [2]] output_shape [1, 8, 32] : tensor<8x32xf16> into tensor<1x8x32xf16>
  %gt = ktdp.construct_access_tile %G[%id, %c0, %c0] {access_tile_set = #slab, access_tile_order = #order3} : memref<4x8x32xf16> -> <1x8x32xindex>
  ktdp.store %a3, %gt : tensor<1x8x32xf16>, <1x8x32xindex>

  %f1 = ktdp.inter_tile_produce producer_tiles_per_group = #first -> <(tensor<8x8xf16>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<8x8xf16>
  }
  %b = ktdp.inter_tile_scatter(%f1) consumer_tiles_per_group = #all, scatter_dimensions = [0] : <(tensor<8x8xf16>), groups = #groups> -> tensor<2x8xf16>
  %st = ktdp.construct_access_tile %S[%row, %c0] {access_tile_set = #small, access_tile_order = #order} : memref<8x8xf16> -> <2x8xindex>
  ktdp.store %b, %st : tensor<2x8xf16>, <2x8xindex>

  %f2 = ktdp.inter_tile_produce producer_tiles_per_group = #all -> <(tensor<8x8xf16>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<8x8xf16>
  }
  %c = ktdp.inter_tile_all_to_all(%f2) consumer_tiles_per_group = #all, split_dimensions = [0], concat_dimensions = [1] : <(tensor<8x8xf16>), groups = #groups> -> tensor<2x32xf16>
  %tt = ktdp.construct_access_tile %T[%row, %c0] {access_tile_set = #rows, access_tile_order = #order} : memref<8x32xf16> -> <2x32xindex>
  ktdp.store %c, %tt : tensor<2x32xf16>, <2x32xindex>

  %f3 = ktdp.inter_tile_produce producer_tiles_per_group = #all -> <(tensor<8x8xf16>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %v : tensor<8x8xf16>
  }
  %d = ktdp.inter_tile_reduce_scatter(%f3) consumer_tiles_per_group = #all, scatter_dimensions = [0], identity(%zero : tensor<8x8xf16>) : <(tensor<8x8xf16>), groups = #groups> -> tensor<2x8xf16> {
  ^bb0(%l: tensor<8x8xf16>, %r: tensor<8x8xf16>):
    %t = arith.addf %l, %r : tensor<8x8xf16>
    ktdp.yield_reduced %t : tensor<8x8xf16>
  }
  %rt = ktdp.construct_access_tile %R[%row, %c0] {access_tile_set = #small, access_tile_order = #order} : memref<8x8xf16> -> <2x8xindex>
  ktdp.store %d, %rt : tensor<2x8xf16>, <2x8xindex>
  return
}
