// SPDX-License-Identifier: Apache-2.0
// Feed-forward with SwiGLU on four compute tiles: each computes 64 of 256 hidden features for 4 tokens of 64, multiplies
// them with its rows of the down projection, and the four partial results meet by a reduction.

#x = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#up = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 255 >= 0)>
#down = affine_set<(d0, d1) : (d0 >= 0, -d0 + 255 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#square = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
#groups = affine_set<(g) : (g == 0)>
#members = affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>
#first = affine_set<(i)[g] : (i == 0)>

func.func @swiglu(%x: index, %gate: index, %up: index, %down: index, %out: index) attributes {grid = [4]} {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %id = ktdp.get_compute_tile_id : index
  %h = arith.muli %id, %c64 : index
  %X = ktdp.construct_memory_view %x, sizes: [4, 64], strides: [64, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<4x64xf16>
  %G = ktdp.construct_memory_view %gate, sizes: [64, 256], strides: [256, 1] {coordinate_set = #up, memory_space = #ktdp.memory_space<global>} : memref<64x256xf16>
  %U = ktdp.construct_memory_view %up, sizes: [64, 256], strides: [256, 1] {coordinate_set = #up, memory_space = #ktdp.memory_space<global>} : memref<64x256xf16>
  %D = ktdp.construct_memory_view %down, sizes: [256, 64], strides: [64, 1] {coordinate_set = #down, memory_space = #ktdp.memory_space<global>} : memref<256x64xf16>
  %O = ktdp.construct_memory_view %out, sizes: [4, 64], strides: [64, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<4x64xf16>
  %xt = ktdp.construct_access_tile %X[%c0, %c0] {access_tile_set = #x, access_tile_order = #order} : memref<4x64xf16> -> <4x64xindex>
  %gt = ktdp.construct_access_tile %G[%c0, %h] {access_tile_set = #square, access_tile_order = #order} : memref<64x256xf16> -> <64x64xindex>
  %ut = ktdp.construct_access_tile %U[%c0, %h] {access_tile_set = #square, access_tile_order = #order} : memref<64x256xf16> -> <64x64xindex>
  %dt = ktdp.construct_access_tile %D[%h, %c0] {access_tile_set = #square, access_tile_order = #order} : memref<256x64xf16> -> <64x64xindex>
  %v = ktdp.load %xt : <4x64xindex> -> tensor<4x64xf16>
  %wg = ktdp.load %gt : <64x64xindex> -> tensor<64x64xf16>
  %wu = ktdp.load %ut : <64x64xindex> -> tensor<64x64xf16>
  %wd = ktdp.load %dt : <64x64xindex> -> tensor<64x64xf16>
  %zero = arith.constant dense<0.0> : tensor<4x64xf32>
  %g = linalg.matmul ins(%v, %wg : tensor<4x64xf16>, tensor<64x64xf16>) outs(%zero : tensor<4x64xf32>) -> tensor<4x64xf32>
  %u = linalg.matmul ins(%v, %wu : tensor<4x64xf16>, tensor<64x64xf16>) outs(%zero : tensor<4x64xf32>) -> tensor<4x64xf32>
  %empty = tensor.empty() : tensor<4x64xf32>
  %silu = linalg.generic {indexing_maps = [#order, #order], iterator_types = ["parallel", "parallel"]} ins(%g : tensor<4x64xf32>) outs(%empty : tensor<4x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %s = spyreop.silu %in : f32
    linalg.yield %s : f32
  } -> tensor<4x64xf32>
  %product = arith.mulf %silu, %u : tensor<4x64xf32>
  %hidden = arith.truncf %product : tensor<4x64xf32> to tensor<4x64xf16>
  %part = linalg.matmul ins(%hidden, %wd : tensor<4x64xf16>, tensor<64x64xf16>) outs(%zero : tensor<4x64xf32>) -> tensor<4x64xf32>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #members -> !ktdp.tile_future<(tensor<4x64xf32>), groups = #groups> {
  ^bb0(%gid: index):
    ktdp.yield_partial %part : tensor<4x64xf32>
  }
  %sum = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = #first, identity(%zero : tensor<4x64xf32>)
      : !ktdp.tile_future<(tensor<4x64xf32>), groups = #groups> -> tensor<4x64xf32> {
  ^bb0(%l: tensor<4x64xf32>, %r: tensor<4x64xf32>):
    %t = arith.addf %l, %r : tensor<4x64xf32>
    ktdp.yield_reduced %t : tensor<4x64xf32>
  }
  %leads = arith.cmpi eq, %id, %c0 : index
  scf.if %leads {
    %half = arith.truncf %sum : tensor<4x64xf32> to tensor<4x64xf16>
    %ot = ktdp.construct_access_tile %O[%c0, %c0] {access_tile_set = #x, access_tile_order = #order} : memref<4x64xf16> -> <4x64xindex>
    ktdp.store %half, %ot : tensor<4x64xf16>, <4x64xindex>
  }
  return
}
